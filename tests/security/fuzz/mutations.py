"""Mutations of bytes, JSON documents, lines of records, words and YAML."""

from __future__ import annotations

import contextlib
import hashlib
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

ESCAPES = "\x1b[31mred\x1b[0m \x1b]0;title\x07 \x9b2J \r\b\x7f"
# JSON that no Python value is dumped as: written in place of a string of this name.
RAW = {
    "@raw:digits@": "9" * 5000,
    "@raw:huge@": "1" + "0" * 400,
    "@raw:1e999@": "1e999",
    "@raw:nan@": "NaN",
    "@raw:infinity@": "-Infinity",
    "@raw:surrogate@": '"\\ud800"',
    "@raw:deep-list@": "[" * 3000 + "]" * 3000,
    "@raw:deep-object@": '{"a":' * 3000 + "1" + "}" * 3000,
    "@raw:twice@": '{"a": 1, "a": 2}',
}
NUMBERS: tuple[Any, ...] = (
    *(0, 1, -1, 2, 3, 7, 255, 65536, 10**6, 10**9, 2**31, 2**63, 2**64, 10**30),
    *(0.0, -0.0, 0.5, -1.5, 1e-300, 1e18, -1e18, 1e300, 253402300800.0, 1795413600.0),
    *("@raw:digits@", "@raw:huge@", "@raw:1e999@", "@raw:nan@", "@raw:infinity@"),
)
WORDS: tuple[str, ...] = (
    *("", " ", "x", "0", "1", "-1", "1.5", "1e5", "nan", "inf", "true", "null", "None", "ü", "²"),
    *("٣", "\u202e\u2066", "\ufeff", "\x00", "\n", "a\nb", "\t", "\r", "'", '"', "\\"),
    *("%s%n", "{}"),
    *("..", "../../etc/passwd", "/", "/dev/zero", "/etc/passwd", "~", "~nobody", "~/x", ".", "a/b"),
    *("-", "--", "-rf", "--user=root", "a b", "a,b", "a=b", "=", "[", "]", "[red]x[/red]", "[/]"),
    *("123", "123_4", "123_[0-3]", "1_[0-999999999]", "n[1-3]", "n[1-999999999]", "n[", "local:1"),
    *("local:²", "local:-1", "local:99999999999999999999", "1_²", "100,101", "0-3", "3-0", "all"),
    *("completed", "failed", "running", "finished", "cancelled", "submitted", "refused", "waiting"),
    *("attempt_started", "workers_started", "attempt_ended", "decided", "saved", "restored"),
    *("2026-11-23T00:00:00", "9999-12-31T23:59:59", "00:10:00", "12-00", "99999999999-00", "1h"),
    *("$(touch x)", "`id`", ";id", "${hpcrun:run}", "${config}", "${oc.env:HOME}"),
    *("<script>", "&lt;"),
    *(ESCAPES, "\x1b", "A" * 300, "A" * 10_000, "\u0627" * 100, "x" * 255 + "/" + "y" * 255),
)
SHAPES: tuple[Any, ...] = (
    *([], {}, [[]], [{}], {"": None}, {"a": {"b": {"c": [1, {"d": None}]}}}, [None], [0, "x"]),
    *(list(range(300)), {f"k{n}": n for n in range(300)}, [["x", 1], ["y", 2]], {"0": 1, "²": 2}),
    *("@raw:surrogate@", "@raw:deep-list@", "@raw:deep-object@", "@raw:twice@"),
)
CONSTANTS: tuple[Any, ...] = (None, True, False)
Text = TypeVar("Text", str, bytes)

BYTES: tuple[bytes, ...] = (
    *(b"\x00", b"\xff\xfe", b"\x1b[2J", b"\x9b31m", b"\n", b"\r\n", b"\n\n\n"),
    *(b"\xc3", b"\xed\xa0\x80"),
    *(b'"', b"{", b"}", b"[", b"]", b",", b":", b"\\", b"null", b"{}", b"[]\n", b'{"event":1}\n'),
    *(b"\x00" * 5000, b"[" * 5000, b'{"a":' * 3000, b"9" * 6000, b"\xef\xbb\xbf", b"\xe2\x80\xae"),
)
WHOLE: tuple[bytes, ...] = (
    *(b"", b"\n", b"null", b"[]", b"{}", b"0", b'"x"', b"true", b"\x00"),
    *(b"\xff" * 64, b"[" * 100_000),
    *(b'{"a":' * 50_000, b"9" * 100_000, b"{}\n" * 2000, b"\x1f\x8b\x08\x00garbage", b"PK\x03\x04"),
    *(b'{"event":"attempt_started"}\n', b'{"event":{}}\n', b"[1,2]\n[3]\n"),
    *(b'{"runs":[{}]}', b"{" * 9),
)


@dataclass
class Draw:
    """The randomness of one case: what is chosen, and each of its mutations.

    Each mutation draws from a generator of its own, so that leaving one out changes no other.
    """

    name: str
    kept: frozenset[int] | None = None
    """The mutations that are made; None for all."""
    rng: random.Random = field(init=False)
    made: int = 0
    """The number of mutations that were offered so far."""
    notes: list[str] = field(default_factory=list)
    """The parts of the case, for whoever repeats it."""

    def __post_init__(self) -> None:
        self.rng = random.Random(self.name)

    def times(self, most: int = 5) -> int:
        """Draw a number of mutations: mostly one or two."""
        number = 1
        while number < most and self.rng.random() < 0.35:
            number += 1
        return number

    def mutate(self, value: Any, ways: Sequence[Callable[[Any, random.Random], Any]]) -> Any:
        """Return a value after a few mutations, each one of ``ways``."""
        for _ in range(self.times()):
            number = self.made
            self.made += 1
            if self.kept is None or number in self.kept:
                rng = random.Random(f"{self.name}:{number}")
                way = rng.choice(ways)
                value = way(value, rng)
                self.notes.append(f"{number}: {way.__name__}")
        return value

    def note(self, text: str) -> None:
        self.notes.append(text)


def strange(rng: random.Random) -> Any:
    """Draw a value that a record's field does not expect."""
    kind = rng.random()
    if kind < 0.35:
        return rng.choice(NUMBERS)
    if kind < 0.7:
        return rng.choice(WORDS)
    # A copy: a mutation that changes it must not change what later cases draw.
    return _copy(rng.choice(SHAPES)) if kind < 0.87 else rng.choice(CONSTANTS)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the paths of all values inside a document, itself first."""
    found = [path]
    if isinstance(value, dict):
        for key, inner in value.items():
            found += places(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            found += places(inner, (*path, index))
    return found


def _at(value: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        value = value[key]
    return value


def _place(value: Any, rng: random.Random) -> tuple[Any, Any]:
    """Draw a value inside a document: its container, and its key there."""
    found = places(value)[1:]
    if not found:
        return None, None
    # Outer keys as often as inner ones, of which there are many more.
    depth = rng.randint(1, max(map(len, found)))
    path = rng.choice([one for one in found if len(one) <= depth])
    return _at(value, path[:-1]), path[-1]


def replace_value(value: Any, rng: random.Random) -> Any:
    container, key = _place(value, rng)
    if container is None:
        return strange(rng)
    container[key] = strange(rng)
    return value


def near_value(value: Any, rng: random.Random) -> Any:
    """Replace a value by one of the same type, or nearly."""
    container, key = _place(value, rng)
    if container is None:
        return value
    old = container[key]
    if isinstance(old, bool) or old is None:
        container[key] = not old
    elif isinstance(old, (int, float)):
        container[key] = rng.choice([-old, old + 1, old * 1000, old // 7, repr(old), *NUMBERS[:8]])
    elif isinstance(old, str):
        at = rng.randint(0, len(old))
        container[key] = rng.choice(
            [old + rng.choice(WORDS), old[:at], old[:at] + rng.choice(WORDS) + old[at:], [old]]
        )
    elif isinstance(old, list):
        container[key] = _copy(
            rng.choice([old[:1], old * 2, old[::-1], [*old, strange(rng)], {"0": old}])
        )
    else:
        container[key] = _copy(
            rng.choice([list(old.items()), list(old), {**old, "x": strange(rng)}])
        )
    return value


def drop_value(value: Any, rng: random.Random) -> Any:
    container, key = _place(value, rng)
    if container is not None:
        del container[key]
    return value


def add_key(value: Any, rng: random.Random) -> Any:
    found = [one for one in places(value) if isinstance(_at(value, one), dict)]
    if found:
        _at(value, rng.choice(found))[rng.choice(WORDS)] = strange(rng)
    return value


def rename_key(value: Any, rng: random.Random) -> Any:
    container, key = _place(value, rng)
    if isinstance(container, dict):
        container[rng.choice(WORDS)] = container.pop(key)
    return value


def swap_values(value: Any, rng: random.Random) -> Any:
    (one, key), (other, name) = _place(value, rng), _place(value, rng)
    if one is not None:
        first, second = _copy(one[key]), _copy(other[name])
        one[key] = second
        # The second may have lain inside the first, and be gone.
        with contextlib.suppress(LookupError):
            other[name] = first
    return value


def _copy(value: Any) -> Any:
    return json.loads(json.dumps(value))


JSON_WAYS = (replace_value, replace_value, near_value, drop_value, add_key, rename_key, swap_values)


def dump(value: Any, **options: Any) -> bytes:
    """Write a document as JSON, with `RAW` in place of its names."""
    text = json.dumps(value, **options)
    for name, raw in RAW.items():
        if name in text:
            text = text.replace(f'"{name}"', raw)
    return text.encode("utf-8", "surrogatepass")


def signed(data: bytes) -> bytes:
    """Give a broken manifest the digest of what it holds, as somebody who breaks it on purpose."""
    try:
        value = json.loads(data)
        value.pop("sha256", None)
        text = json.dumps(value, sort_keys=True).encode()
        return json.dumps({**value, "sha256": hashlib.sha256(text).hexdigest()}).encode()
    except (ValueError, TypeError, AttributeError, RecursionError):
        return data


def flip_bits(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 8])):
        if changed:
            changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _inserted(text: Text, words: Sequence[Text], rng: random.Random) -> Text:
    at = rng.randint(0, len(text))
    return text[:at] + rng.choice(words) + text[at:]


def _deleted(text: Text, lengths: Sequence[int], rng: random.Random) -> Text:
    at = rng.randint(0, len(text))
    return text[:at] + text[at + rng.choice(lengths) :]


def insert_bytes(data: bytes, rng: random.Random) -> bytes:
    return _inserted(data, BYTES, rng)


def delete_bytes(data: bytes, rng: random.Random) -> bytes:
    return _deleted(data, [1, 2, 10, 100], rng)


def truncate(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.randint(0, len(data))]


def repeat_bytes(data: bytes, rng: random.Random) -> bytes:
    at = rng.randint(0, len(data))
    part = data[at : at + rng.choice([10, 100, 1000])]
    return data[:at] + part * rng.choice([1, 2, 20]) + data[at:]


def overwrite(data: bytes, rng: random.Random) -> bytes:
    return rng.choice(WHOLE)


BYTE_WAYS = (flip_bits, flip_bits, insert_bytes, delete_bytes, truncate, repeat_bytes)


def document(draw: Draw, data: bytes) -> bytes:
    """Break a JSON document: in its values, in its bytes, or as a whole."""
    kind = draw.rng.random()
    if kind < 0.75:
        value = draw.mutate(json.loads(data), JSON_WAYS)
        return dump(value, indent=draw.rng.choice([None, 2]), ensure_ascii=draw.rng.random() < 0.5)
    return bytes(draw.mutate(data, BYTE_WAYS if kind < 0.95 else [overwrite]))


def _records_changed(lines: list[bytes], rng: random.Random) -> list[bytes]:
    """Break one record."""
    if not lines:
        return lines
    at = rng.randrange(len(lines))
    try:
        value = json.loads(lines[at])
    except (ValueError, RecursionError):
        return lines
    value = rng.choice(JSON_WAYS)(value, rng)
    lines[at] = dump(value, ensure_ascii=rng.random() < 0.5, separators=(",", ":"))
    return lines


def _line_dropped(lines: list[bytes], rng: random.Random) -> list[bytes]:
    if lines:
        del lines[rng.randrange(len(lines))]
    return lines


def _line_repeated(lines: list[bytes], rng: random.Random) -> list[bytes]:
    if lines:
        lines[rng.randint(0, len(lines)) : 0] = [rng.choice(lines)] * rng.choice([1, 1, 50])
    return lines


def _lines_swapped(lines: list[bytes], rng: random.Random) -> list[bytes]:
    rng.shuffle(lines)
    return lines


def _line_added(lines: list[bytes], rng: random.Random) -> list[bytes]:
    lines.insert(rng.randint(0, len(lines)), rng.choice([*WHOLE[:10], dump(strange(rng)), *BYTES]))
    return lines


def _lines_joined(lines: list[bytes], rng: random.Random) -> list[bytes]:
    if len(lines) > 1:
        at = rng.randrange(len(lines) - 1)
        lines[at : at + 2] = [lines[at] + lines[at + 1]]
    return lines


LINE_WAYS = (
    *(_records_changed,) * 6,
    *(_line_dropped, _line_repeated, _lines_swapped, _line_added, _lines_joined),
)


def records(draw: Draw, data: bytes) -> bytes:
    """Break a file of JSON lines: in a record, in its lines, in its bytes, or as a whole."""
    kind = draw.rng.random()
    if kind < 0.8:
        lines = draw.mutate(data.split(b"\n")[:-1], LINE_WAYS)
        return b"\n".join(lines) + draw.rng.choice([b"\n", b"\n", b"\n", b""])
    return bytes(draw.mutate(data, BYTE_WAYS if kind < 0.96 else [overwrite]))


def blob(draw: Draw, data: bytes) -> bytes:
    """Break bytes of no form, such as a log."""
    return bytes(draw.mutate(data, (*BYTE_WAYS, *BYTE_WAYS, overwrite)))


def _word_in(text: str, rng: random.Random) -> str:
    return _inserted(text, WORDS, rng)


def _cut(text: str, rng: random.Random) -> str:
    return _deleted(text, [1, 1, 3, 20], rng)


def _twice(text: str, rng: random.Random) -> str:
    return text * rng.choice([2, 2, 30])


def _digit(text: str, rng: random.Random) -> str:
    digits = [at for at, sign in enumerate(text) if sign.isdigit()]
    if not digits:
        return text
    at = rng.choice(digits)
    new = rng.choice(["9" * 3, "9" * 12, "9" * 5000, "-1", "²", "٣", "", "0" * 20, "1e9", "0x1"])
    return text[:at] + new + text[at + 1 :]


def _sign(text: str, rng: random.Random) -> str:
    at = rng.randint(0, len(text))
    return text[:at] + rng.choice("[](){},;:-_%@/\\=<>!.+*?|^$ \t'\"~#&\x00\x1b") + text[at:]


def _other(text: str, rng: random.Random) -> str:
    return rng.choice(WORDS)


TEXT_WAYS = (_word_in, _cut, _twice, _digit, _digit, _sign, _sign, _other)


def words(draw: Draw, text: str) -> str:
    """Break an argument."""
    return str(draw.mutate(text, TEXT_WAYS))


_YAML_LINES = (
    *("x: &a [1, 2]\ny: *a", "<<: *a", "? [a, b]\n: 1", "- 1", "--- 2", "..."),
    *("\t x: 1", "x: !!python/none"),
    *("x: !!python/object/apply:os.system ['true']", "x: !!binary aGVsbG8="),
    *("x: !!set {a}", "x: !a b"),
    *("x: &x [*x]", "x: &x {y: *x}", "? &a a : *a", "x: {<<: {a: 1}}", "%YAML 1.2", "# \x1b[31m"),
    *("x: ${x}", "config: {a: '${config.b}', b: '${config.a}'}"),
    *("config: ${.}", "x: ${oc.env:HOME}"),
    "config: {a: '${config.b}${config.b}', b: '${config.c}${config.c}', c: x}",
    *("x: '${'", "x: ${${y}}"),
    *("x: 0777", "x: 1_000", "x: .nan", "x: 1:30:00", "x: 2026-01-01", "x: ~"),
    *("x: |\n  a\n b", "x: >-"),
    *("sweep: {grid: {config.x: [1, 2]}}", "sweep: {grid: {config.x: {range: [0, 1000000000]}}}"),
    "sweep: {random: {samples: 1000000000}}",
    *("resources: {nodes: 1000000000}", "depends_on: [x.yaml]"),
    "sweep: {repeat: {config.seed: [0,1]}, exclude: [{config.x: 1}]}",
    *("extends: base.yaml", "extends: ."),
    *("entry: [true]", "entry: ../../x.py:f", "entry: train.py:train"),
    *("name: '../x'", "cluster: ../x"),
    *("deepspeed_config: ds_zero2.json", "deepspeed_config: /dev/zero"),
    *("extends: /dev/zero", "code: {root: /}"),
    *("environment: {secrets_file: /dev/zero}", "environment: {variables: {AWS_SECRET: x}}"),
)


def _yaml_line(text: str, rng: random.Random) -> str:
    lines = text.split("\n")
    lines.insert(rng.randint(0, len(lines)), rng.choice(_YAML_LINES))
    return "\n".join(lines)


def _yaml_value(text: str, rng: random.Random) -> str:
    lines = text.split("\n")
    found = [at for at, line in enumerate(lines) if ":" in line]
    if found:
        at = rng.choice(found)
        key = lines[at].partition(":")[0]
        new = rng.choice(
            [*WORDS, *map(str, NUMBERS[:20]), "[1, 2]", "{a: 1}", "*a", "&a x", "!!str"]
        )
        lines[at] = f"{key}: {new}"
    return "\n".join(lines)


def _yaml_indent(text: str, rng: random.Random) -> str:
    lines = text.split("\n")
    at = rng.randrange(len(lines))
    lines[at] = (
        " " * rng.choice([1, 2, 3, 8]) + lines[at] if rng.random() < 0.5 else lines[at].strip()
    )
    return "\n".join(lines)


def _yaml_dropped(text: str, rng: random.Random) -> str:
    lines = text.split("\n")
    del lines[rng.randrange(len(lines))]
    return "\n".join(lines)


def _yaml_repeated(text: str, rng: random.Random) -> str:
    lines = text.split("\n")
    lines.insert(rng.randint(0, len(lines)), rng.choice(lines))
    return "\n".join(lines)


def _laughs(width: int, levels: int) -> str:
    lines = [f"l0: &l0 [{', '.join(['lol'] * width)}]"]
    for level in range(1, levels):
        lines.append(f"l{level}: &l{level} [{', '.join([f'*l{level - 1}'] * width)}]")
    return "\n".join(lines)


def _bombs() -> tuple[str, ...]:
    """Specs that are small on disk and large in memory, deep, or long."""
    doubled = [f"  k{n}: '${{config.k{n + 1}}}${{config.k{n + 1}}}'" for n in range(40)]
    return (
        _laughs(9, 9),
        "config:\n" + "\n".join([*doubled, "  k40: x"]),
        "a: " + "{a: " * 200 + "1" + "}" * 200,
        "[" * 20_000,
        "a: " + "[" * 3000 + "]" * 3000,
        "x: " + "9" * 20_000,
        "\n".join(f"unknown{n}: {n}" for n in range(3000)),
        "config:\n" + "\n".join(f"{'  ' * n}a:" for n in range(1, 120)),
        "sweep: {grid: {" + ", ".join(f"config.x{n}: [1, 2]" for n in range(60)) + "}}",
        "config: {x: " + "a" * 200_000 + "}",
        "? " * 2000 + "a",
        "- " * 5000 + "a",
        "&a " * 100 + "x",
        "\n".join(f"a{n}: &a{n} {{<<: *a{n - 1}}}" if n else "a0: &a0 {x: 1}" for n in range(300)),
    )


BOMBS = _bombs()


def _bomb(text: str, rng: random.Random) -> str:
    bomb = rng.choice(BOMBS)
    return rng.choice([bomb, f"{text}\n{bomb}\n"])


YAML_WAYS = (
    *(_yaml_value,) * 5,
    *(_yaml_line,) * 3,
    *(_yaml_indent, _yaml_dropped, _yaml_repeated, _word_in, _cut, _digit, _sign),
)


def yaml_text(draw: Draw, text: str) -> bytes:
    """Break a YAML file in its lines, rarely by a bomb or in its bytes."""
    kind = draw.rng.random()
    if kind < 0.01:
        return str(draw.mutate(text, [_bomb])).encode("utf-8", "surrogatepass")
    if kind < 0.92:
        return str(draw.mutate(text, YAML_WAYS)).encode("utf-8", "surrogatepass")
    return bytes(draw.mutate(text.encode(), (*BYTE_WAYS, overwrite)))

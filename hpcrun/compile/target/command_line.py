"""The arguments of a script or command: ``entry``, ``args``, and the flags made from ``config``."""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from hpcrun.compile.source.marked_tree import Key, Reporter, dotted
from hpcrun.compile.target.slurm_options import check_words
from hpcrun.policy import resume
from hpcrun.shared_dataclass import dataclass
from hpcrun.state.spec.recovery_block import NEWEST

EQUALS, WORDS, HYDRA, NO_FLAGS = "--key=value", "--key value", "key=value", "none"
_NEWEST = f"${{hpcrun:{NEWEST}"
_FLAG = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
# What Hydra reads as it is; all else is quoted, and so is what is filled in later.
_PLAIN = re.compile(r"[\w./@%+*?|-][\w./@%+*?|:-]*", re.ASCII)
_NO_TEXT = re.compile(r"true|false|null|nan|[+-]?(inf|\.?\d[\d_.]*(e[+-]?\d+)?)", re.IGNORECASE)
SHELL = re.compile(r"(?:\S*/)?(?:ba|da|k|z)?sh")
_SHELL = re.compile(rf"{SHELL.pattern} -[a-z]*c")
_USES_ARGUMENTS = re.compile(r"\$\{?[@*1-9]")
_BEFORE_QUOTE = re.compile(r'(\\*)("|$)')


@dataclass(frozen=True)
class Arguments:
    """The arguments of a run's program, of a command with the command itself."""

    argv: tuple[str, ...]
    resumed: tuple[str, ...] | None
    """The arguments of an attempt that resumes; None where the spec says nothing about it."""
    identity: tuple[str, ...]
    """The arguments that count for the run's identity, where the order does not matter."""


def arguments(
    kind: str,
    spec: Mapping[str, Any],
    config: Mapping[str, Any],
    report: Reporter,
    referred: Collection[Key] = (),
    recipe: str | None = None,
) -> Arguments:
    """Return the arguments of a ``script`` or ``command``; report what cannot be a flag.

    ``referred`` are the keys of ``config`` that have arrived in a command already, ``recipe`` is
    that of the framework that was detected.
    """
    is_command = kind == "command"
    entry, args = list(spec["entry"]) if is_command else [], list(spec["args"])
    gone = referred if is_command else ()
    left = without(config, gone) if gone else config
    style = spec["flags"]
    flags = flags_of(left, style, report.below("config"))
    if _NEWEST in "\n".join(flags):
        what = f"found {_NEWEST}…}}, which is a match of recovery.resume.when"
        report.at("config", what, "it can be used in recovery.resume")
    argv = _ordered(entry, args, flags)
    # As before there were other styles: flags came first, and commands had none.
    identity = argv if style != EQUALS else (*entry, *args) if is_command else (*flags, *args)
    found = resume.of(spec["recovery"], spec.get("framework"), argv, recipe)
    if found is None:
        return Arguments(argv, None, identity)
    own = report.below("recovery.resume")
    _check(spec["recovery"]["resume"], found.config, argv, gone, own)
    if found.config and not report.problems.under("config"):
        # Where config makes no flags, those that are replaced still do.
        kept = {**({} if style == NO_FLAGS else left), **found.config}
        kept = {name: kept[name] for name in kept if found.config.get(name, "") is not None}
        flags = flags_of(kept, EQUALS if style == NO_FLAGS else style, own.below("config"))
    for name in (name for name, value in found.config.items() if value is None):
        # Taken away wherever it was given: some programs refuse the one beside the other.
        entry, args = [*entry[:1], *resume.without(name, entry[1:])], resume.without(name, args)
    instead = args if found.instead is None else found.instead
    return Arguments(argv, _ordered(entry, instead, flags, found.args), identity)


def _ordered(
    entry: Sequence[str], args: Sequence[str], flags: Sequence[str], more: Sequence[str] = ()
) -> tuple[str, ...]:
    """Put flags last, so that they win over a configuration file that ``args`` name.

    After a ``--`` a script would not take them for flags; in a command it is a wrapper's. What
    follows the script of ``sh -c`` is its ``$0`` and then ``$@``, if it uses that at all.
    """
    words = [*entry, *args]
    if is_shell_script(words) and (flags or more):
        return (*words, *more) if reads_no_flags(words) else (*words, words[0], *flags, *more)
    end = len(args) if entry or "--" not in args else args.index("--")
    return (*entry, *args[:end], *flags, *more, *args[end:])


def is_shell_script(words: Sequence[str]) -> bool:
    """Check whether a command is ``sh -c SCRIPT`` and nothing more."""
    return len(words) == 3 and _SHELL.fullmatch(" ".join(words[:2])) is not None


def reads_no_flags(command: Sequence[str]) -> bool:
    """Check whether a command is ``sh -c`` with a script that uses no ``$@``."""
    return is_shell_script(command) and not _USES_ARGUMENTS.search(command[2])


def _check(
    written: Any,
    config: Mapping[str, Any],
    argv: Sequence[str],
    referred: Collection[Key],
    report: Reporter,
) -> None:
    """Report a recipe that does not fit the program, and values that would not arrive."""
    name = written["recipe"] if isinstance(written, dict) else written
    if name and (needed := resume.missing(name, argv)):
        report.at((), f"{name} is for programs with {needed}, which neither config nor args give")
    for one in config:
        if written is not None and any(key[1] == one for key in referred):
            found = f"the command refers to ${{config.{one}}}: another value would not arrive there"
            report.at(("config", one), found, "use recovery.resume.args or .instead")


def without(config: Mapping[str, Any], referred: Collection[Key]) -> dict[str, Any]:
    """Return ``config`` without the keys that are referred to, full keys below ``config``."""
    left = dict(config)
    for _, name, *inner in referred:
        if not inner:
            left.pop(name, None)
        elif isinstance(left.get(name), dict):
            left[name] = without(left[name], [("", *inner)])
            if not left[name]:
                del left[name]
    return left


def flags_of(config: Mapping[str, Any], style: str, report: Reporter) -> list[str]:
    """Return the flags of a style of ``flags``, reported below ``config``."""
    if style == NO_FLAGS:
        return []
    if style == HYDRA:
        flags = [f"{dotted(key)}={text}" for key, text in _hydra(config, (), report)]
    else:
        flags = []
        for name, value in config.items():
            plain = _plain_flag(name, value, style) if type(value) in _PLAIN_TYPES else None
            flags += _flag(name, value, style, report) if plain is None else plain
    check_words(flags, "a flag", report)
    return flags


def _flag(name: str, value: Any, style: str, report: Reporter) -> list[str]:
    if not _FLAG.fullmatch(name):
        report.at((name,), f"{name!r} cannot be the name of a flag", "use 'args'")
        return []
    if isinstance(value, dict):
        found = "a nested mapping cannot be the flag of a script or command"
        shown = ", ".join(f"--{name}.{inner}={one}" for inner, one in list(value.items())[:3])
        hint = f"write its options in args: [{shown}]; a Hydra program takes flags: key=value"
        report.at((name,), found, hint)
        return []
    words = [_word(item) for item in (value if isinstance(value, list) else [value])]
    if any(word is None or (style == EQUALS and "," in word) for word in words) and isinstance(
        value, list
    ):
        accepted = "plain values" if style == WORDS else "plain values, no commas"
        form = "--key a b" if style == WORDS else "--key=a,b"
        report.at((name,), f"a list becomes {form}: accepted are {accepted}", "use 'args'")
        return []
    return _option_words(name, map(str, words), style)


# Not floats: 0.0 and -0.0 are equal.
_PLAIN_TYPES = (str, int, bool, type(None))


@functools.lru_cache(maxsize=4096, typed=True)
def _plain_flag(name: str, value: str | int | None, style: str) -> list[str] | None:
    """Return the flag of a plain value, made once for all runs of a sweep; None for a bad name."""
    if not _FLAG.fullmatch(name):
        return None
    if value is None or isinstance(value, bool):
        return [f"--{name}"] if value else []
    return _option_words(name, [str(value)], style)


def _option_words(name: str, words: Iterable[str], style: str) -> list[str]:
    return [f"--{name}", *words] if style == WORDS else [f"--{name}={','.join(words)}"]


def _hydra(config: Mapping[str, Any], above: Key, report: Reporter) -> Iterator[tuple[Key, str]]:
    for name, value in config.items():
        key = (*above, name)
        if not _FLAG.fullmatch(name):
            report.at(key, f"{name!r} cannot be the name of a flag", "use 'args'")
        elif isinstance(value, dict) and value:
            yield from _hydra(value, key, report)
        elif isinstance(value, list) and any(isinstance(item, (dict, list)) for item in value):
            found = "a list becomes key=[a,b]: accepted are plain values"
            report.at(key, found, "use 'args'")
        elif isinstance(value, list):
            yield key, f"[{','.join(map(_quoted, value))}]"
        else:
            yield key, "{}" if value == {} else _quoted(value)


def _quoted(value: Any) -> str:
    """Return a value as Hydra reads it."""
    text = "null" if value is None else str(_word(value))
    is_plain = _PLAIN.fullmatch(text) and not _NO_TEXT.fullmatch(text)
    if is_plain or not isinstance(value, str):
        return text
    escaped = _BEFORE_QUOTE.sub(lambda found: found[1] * 2 + ('\\"' if found[2] else ""), text)
    return f'"{escaped}"'


def _word(value: Any) -> str | None:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, (str, int, float)) else None

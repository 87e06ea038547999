"""Completion of SPEC, of its keys and of their values, without compiling it, which is slow."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from hpcrun import resources
from hpcrun.compile.source.marked_tree import Key, Tree, dotted
from hpcrun.compile.spec import profile_files, schema
from hpcrun.compile.spec.short_keys import ShortKeys
from hpcrun.host import expand_home
from hpcrun.site import site_names
from hpcrun.state import files
from hpcrun.state.spec.experiment import Spec
from hpcrun.tools.completion.completion_answers import PART, TypedLine, Word

_LARGEST_FILE, _MOST_KEYS, _MOST_FILES = 1 << 20, 5_000, 8
# Keys that no command line takes, or that have an option of their own.
_NOT_TYPED = ("extends", "sweep")
_PATHS = {
    "code.root",
    "deepspeed_config",
    "entry",
    "environment.lock",
    "environment.python",
    "environment.secrets_file",
}
_OF_THE_SITE = {
    *("resources.account", "resources.partition", "resources.qos"),
    *("resources.constraint", "resources.gpu_type", "resources.reservation"),
}


def complete_spec(_line: TypedLine, incomplete: str) -> list[Word]:
    """Complete SPEC: files, and names of experiments that ship."""
    names = [name for name in resources.configs("experiments") if name.startswith(incomplete)]
    return [Word("", "yaml"), *(Word(name, about="ships") for name in names)]


def complete_override(line: TypedLine, incomplete: str) -> list[Word]:
    """Complete ``key=value``: a key level by level, or from the end of it, and then its values."""
    spec = _Keys(line)
    sign = "+" if incomplete.startswith("+") else ""
    key, equals, value = incomplete.removeprefix("+").partition("=")
    if equals:
        found = spec.values(spec.full(key), value)
        return [one._replace(value=f"{sign}{key}={one.value}") for one in found]
    return [one._replace(value=sign + one.value) for one in spec.keys(key)]


def complete_sweep(line: TypedLine, incomplete: str) -> list[Word]:
    """Complete ``key=a,b``: as an override, each value after the last comma."""
    key, equals, value = incomplete.partition("=")
    *before, last = value.split(",")
    found = complete_override(line, f"{key}{equals}{last}")
    if not before:
        return found
    done = f"{key}={','.join(before)},"
    return [one._replace(value=done + one.value[len(key) + 1 :]) for one in found]


def name_of(line: TypedLine) -> str:
    """Return the name of the experiment that the spec on the command line makes."""
    spec = _Keys(line)
    return spec.given.get("name") or spec.path.stem


class _Keys:
    """The keys of a spec on the command line: those of its files, and those that any spec has."""

    def __init__(self, line: TypedLine) -> None:
        name, more = line.given("spec") or "", line.values.get("overrides", [])
        path = expand_home(name)
        if not path.is_file():
            path = resources.configs("experiments").get(name, path)
        self.path, self.directory = path, path.parent
        self.overrides = more
        self.given = _written_keys(path)
        self.given.update(
            (f"deepspeed.{key}", value)
            for key, value in _written_keys(self._deepspeed()).items()
            if f"deepspeed.{key}" not in self.given
        )
        every = [*self.given, *schema.fields(Spec)]
        self.known = [key for key in dict.fromkeys(every) if key.split(".")[0] not in _NOT_TYPED]
        data: dict[str, Any] = {}
        for key in self.given:
            block = data
            for part in key.split("."):
                block = block.setdefault(part, {})
        self._short = ShortKeys(Tree(data), lambda key: dotted(key) in self.known)

    def _deepspeed(self) -> Path:
        name = self.given.get("deepspeed_config") or ""
        return resources.configs("deepspeed").get(name, self.directory / name)

    def keys(self, incomplete: str) -> Iterator[Word]:
        """Yield the next level of the keys that begin so, then full keys that end so."""
        levels: dict[str, str | None] = {}
        for key in self.known:
            if key.startswith(incomplete):
                rest, dot, _ = key[len(incomplete) :].partition(".")
                whole = incomplete + rest
                if self._is_block(whole):
                    levels.setdefault(f"{whole}.", None)
                elif not dot:
                    levels.setdefault(f"{whole}=", self.given.get(whole))
        for word, about in levels.items():
            yield Word(word, PART, about)
        if incomplete and "." not in incomplete:
            ends = {key.rpartition(".")[2] for key in self.known if "." in key}
            for end in sorted(ends):
                full = self.full(end) if end.startswith(incomplete) else end
                if full != end and not self._is_block(full):
                    yield Word(f"{end}=", PART, full)

    def full(self, key: str) -> str:
        """Return the one key that ends so; the key itself if there is none or more than one."""
        return dotted(self._short.full(_parts(key)))

    def values(self, key: str, incomplete: str) -> Iterator[Word]:
        """Yield what a key may be, as far as that can be told; else what the file says it is."""
        annotation = schema.find(Spec, _parts(key))
        given = self.given.get(key)
        found: list[str] = []
        for one in (annotation, *get_args(annotation)):
            if get_origin(one) is Literal:
                found += map(str, get_args(one))
        if annotation is bool or given in ("true", "false"):
            found += ["true", "false"]
        if key == "cluster":
            found += profile_files.available(self.directory)
        if key == "deepspeed_config":
            found += resources.configs("deepspeed")
        if key in _OF_THE_SITE:
            found += filter(None, [given, self._profile().get(key)])
            found += site_names.names_of(key)
        if not found and given:
            found = [given]
        for value in dict.fromkeys(found):
            if value.startswith(incomplete):
                yield Word(value)
        if key in _PATHS:
            yield Word("", "file")

    def _is_block(self, key: str) -> bool:
        annotation = schema.find(Spec, _parts(key))
        is_block = schema.dataclass_of(annotation) is not None or get_origin(annotation) is dict
        return self.given.get(key, "") is None or is_block

    def _profile(self) -> dict[str, str | None]:
        named = [one.partition("=")[2] for one in self.overrides if one.startswith("cluster=")]
        name = named[-1] if named else self.given.get("cluster")
        path = profile_files.available(self.directory).get(name or "slurm")
        return _written_keys(path) if path else {}


def _parts(key: str) -> Key:
    return tuple(key.split("."))


def _written_keys(path: Path, opened: int = 0) -> dict[str, str | None]:
    """Return full key -> scalar of a spec's file and of those that it extends; None for a block."""
    import yaml

    found: dict[str, str | None] = {}
    bases: list[str] = []

    def walk(node: Any, prefix: str) -> None:
        if len(found) > _MOST_KEYS:
            return
        for name, value in node.value:
            if not isinstance(name, yaml.ScalarNode):
                continue
            key = f"{prefix}{name.value}"
            is_block = isinstance(value, yaml.MappingNode)
            found[key] = None if is_block else _scalar(value)
            if is_block:
                walk(value, f"{key}.")
            elif key == "extends":
                listed = value.value if isinstance(value, yaml.SequenceNode) else [value]
                bases.extend(str(one.value) for one in listed)

    # What cannot be read is told by the command itself.
    with contextlib.suppress(OSError, ValueError, RecursionError, yaml.YAMLError):
        text = files.read_bytes(path, _LARGEST_FILE)
        loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        node = yaml.compose(text, Loader=loader)
        if isinstance(node, yaml.MappingNode):
            walk(node, "")
    for base in bases[:_MOST_FILES] if opened < _MOST_FILES else ():
        found = {**_written_keys(path.parent / expand_home(base), opened + 1), **found}
    return found


def _scalar(node: Any) -> str:
    return node.value if isinstance(node.value, str) else ""

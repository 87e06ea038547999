"""Composes a spec's files and overrides into one tree."""

from __future__ import annotations

import itertools
import os
import re
import shlex
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, get_origin

from hpcrun import resources
from hpcrun.compile.source import limits, yaml_reader
from hpcrun.compile.source.marked_tree import (
    COMMAND_LINE,
    Key,
    Reporter,
    SourceMark,
    Tree,
    dotted,
    get_at,
    keys,
    nest,
)
from hpcrun.compile.source.problems import Problems, did_you_mean, kind_of, listing, nearest_file
from hpcrun.compile.spec import schema
from hpcrun.compile.spec.short_keys import ShortKeys, has_key
from hpcrun.errors import Problem, UsageError
from hpcrun.host import expand_home, is_there
from hpcrun.shared_dataclass import dataclass
from hpcrun.state.spec.experiment import Spec
from hpcrun.text import plural, shortened


@dataclass(frozen=True)
class Override:
    """``key=value`` on the command line; ``adds`` for ``+key=value``."""

    key: Key
    value: Tree
    adds: bool
    typed: str
    """As it was typed."""

    def at(self, key: Key) -> Override:
        """Return the same for another key."""
        below = len(self.key)
        marks = {(*key, *own[below:]): mark for own, mark in self.value.marks.items()}
        value = get_at(self.value.data, self.key)
        return Override(key, Tree(nest(key, value), marks), self.adds, self.typed)


# What is no spec, but what a spec names.
_PROGRAMS = (".py", ".sh", ".sbatch", ".slurm")
_KEY = re.compile(r"[A-Za-z_][\w.-]*")
_REQUEUE = "runs that were submitted are started again by their name: hpcrun requeue NAME"


def find_spec(spec: Path | str) -> tuple[Path, str]:
    """Return the file that SPEC means, and its name for messages.

    Raises UsageError if there is no such file, and no experiment of that name ships.
    """
    path = expand_home(spec)
    known = resources.configs("experiments")
    text = str(spec)
    if is_there(path.is_file):
        if path.suffix in _PROGRAMS:
            raise UsageError(
                f"{spec} is a program; accepted is a spec, which names it",
                hint=f"hpcrun plan --save {path.stem}.yaml {path.name} writes one",
            )
        if path.suffix == ".ipynb":
            raise UsageError(
                f"{spec} is a notebook; accepted is a spec, or a program",
                hint=f"`jupyter nbconvert --to script {shlex.quote(text)}` makes a script of it",
            )
        return path.absolute(), f"./{text}" if text in known else text
    if text in known:
        return known[text], text
    if is_there(path.is_dir):
        inside = sorted(found.name for found in path.glob("*.yaml"))
        hint = f"it holds {listing(inside, 8)}" if inside else None
        raise UsageError(f"{text} is a directory; accepted is the path of a spec", hint=hint)
    if is_there(path.exists):
        raise UsageError(f"{text} is no regular file; accepted is the path of a spec")
    for program in (f"{text}{ending}" for ending in _PROGRAMS[:2]):
        if is_there(expand_home(program).is_file):
            raise UsageError(f"there is no spec {text!r}", hint=f"did you mean '{program}'?")
    near = [str(path.with_name(one.name)) for one in sorted(path.parent.glob("*.y*ml"))]
    named = f"; experiments that ship: {listing(known)}" if known else ""
    is_path = path.suffix in (".yaml", ".yml")
    hint = f"there are {listing(near, 8)}" if is_path and near else _REQUEUE
    if shutil.which(text):
        hint = f"for a program: hpcrun run -- {shlex.quote(text)} ARGUMENTS"
    raise UsageError(
        f"there is no spec {text!r}: no such file, and no experiment of that name{named}",
        hint=nearest_file(text, [*near, *known]) or hint,
    )


def passed_over(shown: str) -> Iterator[str]:
    """Yield a note of what has the name of an experiment that ships, which `find_spec` took."""
    if shown not in resources.configs("experiments"):
        return
    own = [name for name in (f"{shown}.yaml", f"{shown}.yml") if is_there(Path(name).is_file)]
    if is_there(Path(shown).is_dir):
        own += [str(path) for path in sorted(Path(shown).glob("*.y*ml"))]
    if own:
        yield (
            f"{shown} is the experiment of this name that ships with hpcrun; for your own, type "
            f"{listing(own, 8)}"
        )


def read(
    path: Path,
    shown: str,
    problems: Problems,
    open_files: tuple[Path, ...] = (),
    text: str | None = None,
) -> Tree:
    """Read a spec's file over those that it extends, without ``extends`` and the others' names.

    A file that is not written is its ``text``.
    """
    tree = yaml_reader.read_yaml(path, shown, problems, text)
    if tree is None:
        problems.unreadable = True
        return Tree({})
    tree.data = {
        name: value
        for name, value in tree.data.items()
        if value is not None or not _is_mapping(name)
    }
    above = tree.data.pop("extends", None)
    base = Tree({})
    if isinstance(above, list):
        wanted = [(f"extends.{index}", name) for index, name in enumerate(above)]
    else:
        wanted = [("extends", above)] if above is not None else []
    for key, name in wanted:
        parent = _read_extended(name, key, path, shown, Reporter(tree, problems), open_files)
        if parent is not None:
            parent.data.pop("name", None)
            parent.marks.pop(("name",), None)
            base = parent.over(base)
    return tree.over(base)


def _read_extended(
    name: Any, key: str, path: Path, shown: str, report: Reporter, open_files: tuple[Path, ...]
) -> Tree | None:
    """Read one of the files that the spec at ``path`` extends; None after a problem."""
    if not isinstance(name, str) or not name or "${" in name:
        found = kind_of(name) if not isinstance(name, str) else repr(name)
        report.at(key, f"found {found}; accepted is the path of a file")
        return None
    target = report.mark(key).path(name)
    chain = (*open_files, path.resolve())
    if len(chain) > limits.DEEPEST:
        report.at(key, f"the files extend each other more than {limits.DEEPEST} deep")
        report.problems.check()
    if not is_there(target.is_file):
        report.problems.unreadable = True
        report.no_file(key, name, target, "*.y*ml")
        return None
    if target.resolve() in chain:
        report.problems.unreadable = True
        circle = " -> ".join(one.name for one in (*chain, target))
        report.at(key, f"the files extend each other in a circle: {circle}")
        return None
    inner = "/".join([*shown.split("/")[:-1], name]) if not name.startswith("/") else name
    return read(target, os.path.normpath(inner), report.problems, chain)


def parse_overrides(texts: Sequence[str], directory: Path, problems: Problems) -> list[Override]:
    """Parse ``key=value`` and ``+key=value``; paths in values start from the spec's directory."""
    found = []
    for text in texts:
        name, equals, value = text.partition("=")
        adds = name.startswith("+")
        name = name.removeprefix("+").strip()
        if what := limits.unwritable(text):
            problems.add(Problem(COMMAND_LINE, "", f"{text!r} holds {what}"))
            continue
        is_key = bool(equals and name) and all(name.split(".")) and not limits.is_deep(name)
        if not is_key or name[0] in "+~":
            message = f"found {shortened(text, 200)!r}; accepted are key=value and +key=value"
            is_twice = is_key and name[0] == "+"
            hint = f"type {name}={value}" if is_twice else _meant(name, equals, texts)
            problems.add(Problem(COMMAND_LINE, "", message, hint and shortened(hint, 400)))
            continue
        key = tuple(name.split("."))
        if key[0] == "extends" or key[:2] == ("sweep", "grid"):
            hint = "use --sweep key=a,b" if key[0] == "sweep" else "write it in the file"
            problems.add(Problem(COMMAND_LINE, name, "cannot be given as key=value", hint))
            continue
        parsed = yaml_reader.parse_value(value, name, directory, problems)
        if parsed is not None:
            marks = {(*key, *own[1:]): mark for own, mark in parsed.marks.items()}
            found.append(Override(key, Tree(nest(key, parsed.data["value"]), marks), adds, text))
    return found


def _meant(name: str, equals: str, texts: Sequence[str]) -> str | None:
    """Return what to type for a word of the command line that is no ``key=value``."""
    if name.startswith("~"):
        return f"{name[1:]}=null takes a value away"
    if not equals and name.endswith(_PROGRAMS):
        return f"a spec's program is its entry: entry={name}; without a spec type it in its place"
    for first, second, third in zip(texts, texts[1:], [*texts[2:], ""], strict=False):
        words = [first, second, third] if second == "=" else [first, second]
        is_apart = second[:1] == "=" if "=" not in first else first.find("=") == len(first) - 1
        if is_apart and words[0] != "=" != words[-1] and name in (*words, ""):
            return f"no blanks around the sign: {''.join(words)}"
    key, colon, value = name.strip("{}").partition(":")
    if not equals and key and colon and value:
        return f"type {key}={value.strip()}"
    if name.endswith((".yaml", ".yml")):
        return "one SPEC is accepted, and key=value behind it; another takes a line of its own"
    if equals or not _KEY.fullmatch(name):
        return None
    return f"give it a value, {name}=VALUE; sweep with --sweep key=a,b"


def check_added(override: Override, tree: Tree, problems: Problems) -> bool:
    """Return whether ``+key=value`` adds a key where one may be; report it at the top level."""
    first = override.key[0]
    if schema.find(Spec, (first,)) is not None:
        return True
    full = ShortKeys(tree).full(override.key)
    value = override.typed.partition("=")[2]
    hint = f"type +config.{dotted(override.key)}={value}"
    if full != override.key:
        hint = f"{dotted(full)} is there: type {dotted(full)}={value}"
    found = f"+{first} would be a key of the top level, which has its own keys alone"
    problems.add(Problem(COMMAND_LINE, dotted(override.key), found, hint))
    return False


def check_exists(key: Key, tree: Tree, problems: Problems, place: SourceMark | None = None) -> bool:
    """Return whether a key of the command line, or of a sweep at ``place``, exists; report if not.

    A field of a spec exists even where no file mentions it, and so does a key that DeepSpeed knows.
    """
    if has_key(tree, key):
        return True
    mark = place or SourceMark(COMMAND_LINE, None, Path())
    named = [dotted(one) for one in ShortKeys(tree).meant(key)]
    if len(named) > 1:
        found = f"is short for {plural(len(named), 'key')}: {listing(named, 8)}"
        Reporter(tree, problems).at_mark(mark, key, found, "type one of them in full")
        return False
    message = f"there is no key {dotted(key)}"
    given = (dotted(one) for one in keys(tree.data))
    every = itertools.chain(schema.fields(Spec), given)
    # The mapping that a key would be in is not what was meant by it.
    above = {dotted(key[:length]) for length in range(1, len(key))}
    names = [name for name in every if not name.startswith("sweep") and name not in above]
    full = key if len(key) > 1 else ("config", *key)
    adds = f"+{dotted(full)}=VALUE adds it" if _KEY.fullmatch(dotted(full)) else ""
    if place is not None:
        written = f"{': {'.join(full)}: VALUE{'}' * (len(full) - 1)}"
        adds = f"write {written} into the spec: a sweep varies what is there"
    if schema.is_free(Spec, key):
        parent = get_at(tree.data, key[:-1])
        siblings = list(parent) if isinstance(parent, dict) else []
        hint = did_you_mean(key[-1], siblings) or did_you_mean(dotted(key), names)
        if siblings:
            message += f"; {dotted(key[:-1])} has {listing(siblings, 12)}"
        if place is None or key[0] != "deepspeed":
            hint = f"{hint or ''} {adds}".strip()
    else:
        hint = _schema_hint(key)
        block = schema.dataclass_of(schema.find(Spec, key[:-1]))
        config = get_at(tree.data, ("config",))
        if len(key) > 1 and block is not None:
            message += f"; '{dotted(key[:-1])}' accepts {listing(schema.accepted_keys(block))}"
        elif len(key) == 1 and isinstance(config, dict) and config:
            hint = hint or did_you_mean(key[0], config)
            message += f"; config has {listing(config, 12)}"
            hint = f"{hint or ''} {adds}".strip()
        hint = hint or did_you_mean(dotted(key), names)
        if hint is None and place is None and schema.find(Spec, key[:1]) is None:
            adds = shlex.quote(added_word(key, "VALUE", tree))
            hint = f"{adds} adds it, where it is the program's"
        elif hint is None and len(key) == 1:
            hint = adds
    Reporter(tree, problems).at_mark(mark, key, message, hint)
    return False


def added_word(key: Key, value: str, tree: Tree) -> str:
    """Return the word that adds a key to ``config``, nested for functions and Hydra's programs."""
    is_script = isinstance(entry := tree.data.get("entry"), list) or str(entry).endswith(".py")
    if len(key) > 1 and is_script and tree.data.get("flags") != "key=value":
        return f"config={{{dotted(key)}: {value}}}"
    return f"+config.{dotted(key)}={value}"


def _schema_hint(key: Key) -> str | None:
    for length in range(1, len(key) + 1):
        if schema.find(Spec, key[:length]) is None:
            block = schema.dataclass_of(schema.find(Spec, key[: length - 1])) or Spec
            return schema.suggest(block, Spec, key[:length])
    return None


def _is_mapping(name: str) -> bool:
    """Return whether a top-level field is a mapping: an empty ``resources:`` is left out."""
    annotation = schema.hints(Spec).get(name)
    return get_origin(annotation) is dict or isinstance(annotation, type)

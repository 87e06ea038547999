"""Options that other programs have and hpcrun does not: what to type in their place."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING

import click

from hpcrun.cli import commands
from hpcrun.cli.options import SPEC_HERE
from hpcrun.compile.target.sbatch_request import SHORT
from hpcrun.errors import HpcrunError
from hpcrun.state import job_changes
from hpcrun.text import one_line

if TYPE_CHECKING:
    from hpcrun.compile.source.marked_tree import Tree

# Short options, most of them sbatch's; Hydra has some of two letters.
_LONG = {
    **{f"-{letter}": name for letter, name in SHORT.items()},
    **{"-m": "multirun", "-cd": "config-dir", "-cn": "config-name", "-cp": "config-path"},
    **{"-f": "follow", "-j": "jobs"},
}
# Options of sbatch and of launchers -> the key of a spec that takes their value.
_KEYS = {
    **dict.fromkeys(("nnodes", "num-nodes", "num-machines"), "resources.nodes"),
    **dict.fromkeys(("gpus-per-node", "gres", "num-gpus"), "resources.gpus_per_node"),
    **dict.fromkeys(("jobs", "max-parallel", "n-jobs", "parallel"), "sweep.max_parallel"),
    **dict.fromkeys(("nproc-per-node", "tasks-per-node"), "resources.ntasks_per_node"),
    **{"deepspeed": "deepspeed_config", "mail-user": "notify.mail"},
}
# Options of sbatch that have no key of their own.
_PASSED_ON = frozenset({"begin", "exclusive", "licenses", "nodelist", "switches"})
_SWEEP = "--sweep KEY=A,B"
_FILE = "SPEC is the file itself, with its directory"
# Options whose value no key takes.
_TOLD = {
    "array": f"an array is made of the runs of a sweep, {_SWEEP}",
    "cfg": "`hpcrun plan` shows the configuration",
    "config-dir": _FILE,
    "config-name": "SPEC is the file itself",
    "config-path": _FILE,
    "dependency": "what has to end before is named in the spec, `depends_on: OTHER.yaml`",
    "dry-run": "`hpcrun plan` submits nothing, and shows what would be",
    "follow": "`hpcrun logs -f` shows what ranks print",
    "multirun": f"a key is swept by {_SWEEP}",
    "ntasks": "ranks are counted per node, resources.nodes=N resources.ntasks_per_node=M",
    "watch": "`hpcrun status --watch` shows how runs go",
}
_TOLD |= dict.fromkeys(("set", "param", "override", "overrides"), "key=value stands by itself")
# Options of others that are another command here, and an option of this one.
_VERBS = {"dry-run": "plan", "cfg": "plan"}
_SAME = dict.fromkeys(("--force", "--overwrite", "--rerun", "--restart"), "--new")
# A command's name and an option that others have -> the words to type; None stands for its value,
# METRIC and pdf for one that may be left out.
_IN_PLACE: dict[tuple[str, str], tuple[str | None, ...]] = {
    **{(name, "--all"): ("*",) for name in ("why", "results", "clean", "cancel", "logs")},
    **{("logs", option): ("--tail", None) for option in ("-n", "--lines", "--last", "--limit")},
    ("logs", "--job"): (None,),
    **{("logs", option): ("-f",) for option in ("-w", "--watch")},
    **{("status", option): ("-w",) for option in ("-f", "--follow")},
    **{("list", option): ("|", "head", "-n", None) for option in ("-n", "--limit", "--last")},
    **{("results", f"--{form}"): ("--format", form) for form in ("csv", "latex")},
    ("results", "-o"): ("--format", "csv", ">", None),
    ("results", "--output"): ("--format", "csv", ">", None),
    **{("results", option): ("|", "head", "-n", None) for option in ("-n", "--limit", "--head")},
    **{("results", option): ("--sort", None) for option in ("--order-by", "--sort-by")},
    ("results", "--best"): ("--sort", "METRIC"),
    **{("delete", option): ("--yes",) for option in ("-f", "--force", "-rf")},
    ("delete", "-r"): (),
    ("show", "--dir"): ("--path",),
    ("show", "--directory"): ("--path",),
    ("list", "--all"): (),
    ("status", "-u"): ("--all-users",),
    ("report", "--format"): ("-o", "report.pdf"),
    ("report", "--open"): ("-o", "report.html"),
    ("results", "--top"): ("--sort", "METRIC", "|", "head", "-n", None),
}
# What a condition may be of, typed as an option.
_CONDITIONS = frozenset({"state", "cause", "tag", "attempts", "step", "note"})
_STATES = frozenset({"cancelled", "completed", "failed", "pending", "running"})
_FLAGS = frozenset(
    {"dry-run", "exclusive", "follow", "multirun", "requeue", "test-only", "wait", "watch"}
)
_SPEC = (".yaml", ".yml")
# An option of one dash, whose name is a whole word.
_LONG_NAME = re.compile(r"-[a-z][a-z_.-]+")
_NEARLY = 0.8


def explained(
    error: click.NoSuchOption, context: click.Context, words: Sequence[str]
) -> click.UsageError:
    """Return the error with what to type instead, where that is known.

    ``words`` are those after the command's name.
    """
    takes, command = {one.name for one in context.command.params}, context.command.name or ""
    if error.option_name == "--on" and (moved := _moved_before(command, words)):
        line = one_line(shlex.join([*context.command_path.split()[:1], *moved]))
        message = f"--on stands before the command; type\n  {line}"
        return click.UsageError(message, context)
    if "overrides" in takes:
        typed, notes = _translated(context.command, words)
    elif ("where" in takes or command == "list") and (
        found := _replaced(command, words, error.option_name)
    ):
        typed, notes = found
    else:
        return error
    shown = [word if word in (">", "|") else shlex.quote(word) for word in typed]
    path = context.command_path.split()
    verbs = [_VERBS[one] for one in _VERBS if _TOLD[one] in notes]
    if command == "list" and any("=" in word for word in typed):
        verbs = ["status"]
        shown = (
            shown if any(word[0] != "-" and "=" not in word for word in typed) else ["'*'", *shown]
        )
    line = one_line(" ".join([*path[:-1], *(verbs or path[-1:]), *shown]))
    message = f"No such option {error.option_name!r}: {'; '.join(notes)}; type\n  {line}"
    return click.UsageError(message, context)


def _moved_before(command: str, words: Sequence[str]) -> list[str] | None:
    """Return the words with ``--on CLUSTER`` before the command; None without a CLUSTER."""
    for at, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name == "--on" and (equals or at + 1 < len(words)):
            rest = words[at + 1 if equals else at + 2 :]
            return ["--on", value if equals else words[at + 1], command, *words[:at], *rest]
    return None


def launchers_key(name: str) -> str | None:
    """Return the key of a spec for an option that launchers have, and sbatch has not."""
    return _KEYS.get(name.replace("_", "-"))


def _replaced(
    command: str, words: Sequence[str], option: str
) -> tuple[list[str], list[str]] | None:
    """Return the words of a command that reads, with its own in place of others' options.

    ``option`` is the one that is not known: with a value behind ``=`` it is a condition, if it is
    nothing else.
    """
    typed: list[str] = []
    last: list[str] = []
    notes: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        wanted = _IN_PLACE.get((command, name))
        if name[:2] == "--" and name[2:] in _STATES and not equals:
            wanted = (f"state={name[2:]}",)
        elif wanted == ("*",) and any(one[0] != "-" for one in words):
            wanted = ()
        is_change = command == "update" and name[2:] in job_changes.KEYS
        is_condition = is_change or name[2:] in _CONDITIONS or (equals and name == option)
        if wanted is None and not (name[:2] == "--" and is_condition):
            typed.append(word)
            continue
        if not equals and (wanted is None or None in wanted):
            if not rest:
                return None
            value = rest.pop(0)
        elif wanted and {*wanted} & {"METRIC", "report.pdf"} and typed and rest:
            # Behind a name it is no other's.
            value = value or rest.pop(0)
        if wanted is None:
            typed.append(f"{name[2:]}={value}")
            what = "changes" if is_change else "conditions"
            notes.append(f"{what} are words without dashes")
            continue
        # A table begins with a heading.
        count = str(int(value) + 1) if "head" in wanted and value.isdecimal() else value
        filled = [count if one is None else one for one in wanted]
        if value and filled[-1:] in (["METRIC"], ["report.pdf"]):
            filled[-1] = value if filled[-1] == "METRIC" else f"report.{value}"
        # What a shell reads of a line is the last of it.
        cut = next((place for place, one in enumerate(filled) if one in (">", "|")), len(filled))
        typed, last = [*typed, *filled[:cut]], [*last, *filled[cut:]]
        notes.append("here it is called otherwise")
    return ([*typed, *last], list(dict.fromkeys(notes))) if notes else None


def _translated(command: click.Command, words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the words with what hpcrun takes in place of other options, and notes on these."""
    options = [one for one in command.params if isinstance(one, click.Option)]
    known = {name: one for one in options for name in one.opts}
    typed: list[str] = []
    notes: list[str] = []
    rest, sweeps = list(words), False
    while rest:
        word = rest.pop(0)
        if word == "-m" and rest and "=" not in rest[0] and all("=" in one for one in typed):
            return [*typed, "python", *words[-len(rest) - 1 :]], [
                "a module is a program of Python's"
            ]
        bare = word.partition("=")[0]
        if _LONG_NAME.fullmatch(bare) and has_key(_spec_of(words), bare[1:]):
            word = f"-{word}"
        name, value = _split(word)
        near = [_SAME.get(name, name)]
        if near[0] not in known and name.startswith("--"):
            # Nobody means the opposite.
            alike = [one for one in known if one.startswith("--no") == name.startswith("--no")]
            near = get_close_matches(name, alike, 1, _NEARLY)
        option = known.get(near[0]) if near else None
        is_flag = option is not None and (option.is_flag or option.count)
        if not word.startswith("-"):
            swept = sweeps and "," in word.partition("=")[2]
            typed += ["--sweep", word] if swept else [word]
        elif option is None or (is_flag and value is not None):
            name = _LONG.get(name, name.lstrip("-"))
            if value is None and rest and _is_value(name, rest[0]):
                value = rest.pop(0)
            sweeps |= name in ("array", "multirun")
            if of_submit := _of_submit(name, command.name, words):
                notes.append(of_submit)
            else:
                _translate(name, value, typed, notes)
        else:
            typed.append(word.replace(name, near[0], 1))
            if near[0] != name:
                notes.append(f"did you mean {near[0]}")
            if not is_flag and value is None and rest:
                typed.append(rest.pop(0))
    if specs := [word for word in typed if word.endswith(_SPEC) and "=" not in word]:
        typed.remove(specs[0])
        typed.insert(0, specs[0])
    if sweeps and "--sweep" not in typed:
        typed += _SWEEP.split()
    return typed, list(dict.fromkeys(notes))


def _spec_of(typed: Sequence[str]) -> Tree | None:
    """Return the tree of the spec that the words name; None where none is read."""
    from hpcrun.compile.source.problems import Problems
    from hpcrun.compile.spec import compose

    words = [one for one in typed if "=" not in one and one[0] != "-"]
    try:
        return compose.read(*compose.find_spec(next(iter(words), SPEC_HERE)), Problems())
    except HpcrunError:
        return None


def has_key(tree: Tree | None, name: str) -> bool:
    """Check whether a spec has a key, or one that this is short for; False without a spec."""
    from hpcrun.compile.spec.short_keys import ShortKeys

    key = tuple(name.split("."))
    return tree is not None and all(key) and ShortKeys(tree).knows(key)


def _of_submit(name: str, command: str | None, words: Sequence[str]) -> str | None:
    """Return the note on an option of ``submit``, or its opposite, that is no key; else None."""
    submit = commands.load("submit")
    params = submit.params if submit else []
    options = {one.lstrip("-"): one for param in params for one in param.opts}
    base = name.removeprefix("no-")
    meant = options.get(name) or options.get(base) or options.get(f"no-{base}")
    if meant is None or name in _TOLD or has_key(_spec_of(words), name):
        return None
    if command == "submit":
        return f"submit without {meant} does so"
    return f"{meant} is an option of `hpcrun submit`"


def _split(word: str) -> tuple[str, str | None]:
    """Return an option's name, and the value that is one word with it."""
    if word.startswith("--") or word[:3] in _LONG:
        name, equals, value = word.partition("=")
        return name, value if equals else None
    return word[:2], word[2:].removeprefix("=") or None


def _is_value(name: str, word: str) -> bool:
    """Check whether the next word is an option's value, and no other word of the command."""
    if name in _FLAGS:
        return False
    if name == "config-name":
        return not word.startswith("-")
    is_number = re.fullmatch(r"-[\d.]+(e-?\d+)?", word) is not None
    return is_number or not (word.startswith("-") or "=" in word or word.endswith(_SPEC))


def _translate(name: str, value: str | None, typed: list[str], notes: list[str]) -> None:
    """Add what hpcrun takes in place of an option, and a note on it."""
    from hpcrun.compile.spec.compose import added_word
    from hpcrun.compile.target.slurm_options import OWNED, OWNED_BY_FIELD

    plain = name.replace("_", "-")
    if said := _TOLD.get(plain) or OWNED.get(plain):
        notes.append(said)
        if plain == "config-name" and value:
            typed.insert(0, value if value.endswith(_SPEC) else f"{value}.yaml")
        return
    key = _KEYS.get(plain) or OWNED_BY_FIELD.get(plain, "").partition(" ")[0] or name
    if plain in _PASSED_ON:
        key, value = "resources.sbatch", f"{{{plain}: {value or 'true'}}}"
    elif key.endswith("gpus_per_node") and value:
        value = value.rpartition(":")[2]  # gpu:a100:8 is eight
    elif key.startswith("no-") and value is None:
        key, value = key[3:], "false"
    if value is None:
        value = "true" if key in (name, name[3:]) else "VALUE"
    tree = _spec_of(typed) if key == name else None
    if tree is None or has_key(tree, key):
        typed.append(f"{key}={value}")
    else:
        typed.append(added_word(tuple(key.split(".")), value, tree))
    notes.append("keys of the spec are typed as key=value")

"""Notes on runs whose swept values may not arrive where they are meant to."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Sequence, Set
from pathlib import Path
from typing import Any

from hpcrun.compile.freeze import CompiledRun
from hpcrun.compile.source.marked_tree import Key, get_at, leaves
from hpcrun.compile.target import command_line
from hpcrun.compile.target.entry import program_text
from hpcrun.state.plan import SEARCH
from hpcrun.text import agreeing, listed, plural, short_ends, shortened

_MOST_NOTES = 3
_DEVICES = Path("/dev")
# What programs call where they write.
_OUTPUT = re.compile(
    r"(?:out(?:put)?s?|save|log|logging|ckpt|checkpoint|results?|work|run)s?(?:[_-]?(?:dir|path|root"
    r"|folder|directory|to))?|default_root_dir"
)
# A shell's script uses its arguments, or another file that it reads may.
_READS_ARGUMENTS = re.compile(r"(?m)\$\{?[@*#1-9]|\b(?:getopts|shift|source)\b|(?:^|[;&|])\s*\. ")
# The driver of GPUs other than NVIDIA's, or of Windows below: they cannot be counted by name.
_UNCOUNTED = ("kfd", "dxg", "nvhost-ctrl")


def unread(runs: Sequence[CompiledRun], arrived: Set[Key]) -> Iterator[str]:
    """Yield a note of keys of ``config`` that cannot be flags of a shell's script."""
    found: dict[str, None] = {}
    for run in runs:
        wanted = run.spec["flags"] != command_line.NO_FLAGS and run.entry.kind == "command"
        if wanted and command_line.reads_no_flags(run.entry.argv):
            left = command_line.without(run.spec["config"], arrived)
            found.update(dict.fromkeys(f"config.{name}" for name in left))
    if found:
        yield (
            f"{listed([*found], 8)} {agreeing(len(found), 'is no flag', 'are no flags')}, as the "
            'script of `sh -c` has no "$@": refer to ${config.KEY}, or set flags: none'
        )


def started_alike(runs: Sequence[CompiledRun]) -> Iterator[str]:
    """Yield a note of runs whose program cannot tell which of them it is."""
    alike: dict[tuple[str, ...], list[CompiledRun]] = {}
    if SEARCH in (first := runs[0]).spec and first.entry.kind != "function":
        # In place of values its trials have their names.
        given = json.dumps([first.entry.argv, first.spec["deepspeed"]], ensure_ascii=False)
        names = short_ends(first.spec[SEARCH]["space"])
        if keys := [key for key, name in names.items() if f"<{name}>" not in given]:
            yield (
                f"no program of a trial is started with its {listed(keys, 8)}, as that is no flag: "
                "only hpcrun.session().config has it"
            )
            return
    for run in runs:
        if run.entry.kind != "function" and SEARCH not in run.spec:
            alike.setdefault(run.entry.argv, []).append(run)
    notes = []
    for group in alike.values():
        seen: dict[str, CompiledRun] = {}
        for run in group if len(group) > 1 else ():
            rest = {name: run.spec[name] for name in run.spec if name not in ("config", "name")}
            other = seen.setdefault(json.dumps(rest, sort_keys=True, default=str), run)
            if other is not run:
                keys = [key for key in run.swept if run.swept[key] != other.swept.get(key)]
                notes.append(
                    f"{other.label or 'a run'} and {run.label}: their programs are started with "
                    "the same arguments, variables and DeepSpeed configuration, as "
                    f"{listed(keys, 8)} {agreeing(len(keys), 'is no flag', 'are no flags')}; "
                    "only hpcrun.session().config tells them apart"
                )
    yield from notes[:_MOST_NOTES]
    if (left := len(notes) - _MOST_NOTES) > 0:
        yield f"and so are {left:,} more"


def _values(runs: Sequence[CompiledRun]) -> Iterator[tuple[CompiledRun, str, Any]]:
    """Yield the values of the first run's ``config``, and those that are swept of the others."""
    for run in runs[:1]:
        yield from ((run, name, value) for name, value in run.spec["config"].items())
    for run in runs[1:]:
        for key in run.swept:
            block, *rest = key.split(".", 2)
            if block == "config" and rest:
                yield run, rest[0], run.spec["config"].get(rest[0])


def lists_of_words(runs: Sequence[CompiledRun], code_root: str) -> Iterator[str]:
    """Yield a note if a list becomes one word, of which the program takes several (``nargs``)."""
    lists = {
        (name, run.entry.file): value
        for run, name, value in _values(runs)
        if isinstance(value, list)
        and len(value) > 1
        and run.entry.file
        and run.spec["flags"] == command_line.EQUALS
    }
    for (name, file), value in list(lists.items())[:_MOST_NOTES]:
        wanted = rf"""["']--{re.escape(name)}["'][^()]*\bnargs\b"""
        if re.search(wanted, program_text(Path(code_root, str(file))) or ""):
            shown = ",".join(map(str, value))
            yield (
                f"config.{name} becomes one word, --{name}={shown}, and {file} takes several: "
                "write flags: --key value"
            )


def written_outside(runs: Sequence[CompiledRun]) -> Iterator[str]:
    """Yield a note of what the program is to write outside of a run's directory."""
    found = {
        f"config.{name}": value
        for _, name, value in _values(runs)
        if isinstance(value, str) and value.startswith("/") and _OUTPUT.fullmatch(name)
    }
    for name, value in list(found.items())[:_MOST_NOTES]:
        yield (
            f"{name}: {value} is outside of the run's directory: every run and attempt writes "
            f"there. A relative path, {name}={Path(value).name}, is the run's own, and kept"
        )


def on_this_machine(cluster: str, runs: Sequence[CompiledRun]) -> Iterator[str]:
    """Yield notes on what is Slurm's alone, and on more GPUs than this machine has.

    ``cluster`` is the name of its profile.
    """
    if any(run.spec["recovery"]["grow"] for run in runs):
        yield "recovery.grow does nothing on this machine, where Slurm is not asked for anything"
    if any(run.spec["notify"]["mail"] for run in runs):
        yield (
            "notify.mail does nothing on this machine, as Slurm sends it; notify.command is run "
            "here too"
        )
    asked = max(run.spec["resources"]["gpus_per_node"] for run in runs)
    if not asked or any((_DEVICES / name).exists() for name in _UNCOUNTED):
        return
    there = len(list(_DEVICES.glob("nvidia[0-9]*")))
    if there < asked:
        found = plural(there, "GPU") if there else "no GPU"
        yield (
            f"resources.gpus_per_node: found {asked}, and cluster {cluster} is this machine, which "
            f"has {found}: type gpus_per_node={there}, or cluster=NAME for one that has them"
        )


def kept_from_program(runs: Sequence[CompiledRun], directory: Path) -> Iterator[str]:
    """Yield a note on arguments that a shell's script, in the spec's directory, does not use."""
    kind, argv = runs[0].entry.kind, runs[0].entry.resumed or runs[0].entry.argv
    words = [word for word in argv[2:] if word]
    if kind == "command" and words and command_line.SHELL.fullmatch(argv[0]):
        text = program_text(directory / argv[1])
        if text is not None and not _READS_ARGUMENTS.search(text):
            yield (
                f"{shortened(shlex.join(words))} does not arrive, as {argv[1]} uses none of its "
                'arguments: write "$@" behind its program there'
            )


def not_compared(runs: Sequence[CompiledRun]) -> Iterator[str]:
    """Yield a note if ranks are to be compared that nothing compares."""
    asked = (run for run in runs if isinstance(run.spec["recovery"]["check_replicas"], int))
    if any(run.entry.kind != "function" for run in asked):
        yield (
            "recovery.check_replicas: the ranks of hpcrun.session() are compared, those of a "
            "program that does not call it are not"
        )


def trained_by_deepspeed(runs: Sequence[CompiledRun]) -> Iterator[str]:
    """Yield a note of each swept key of ``config`` that DeepSpeed has under the same name, fixed.

    Only where all runs have the same number there: the optimizer that DeepSpeed makes takes it.
    """
    swept = {name: None for run in runs for name in run.swept if name.startswith("config.")}
    if not swept:
        return
    fixed = dict(leaves(runs[0].spec["deepspeed"]))
    for name in swept:
        short = name.rpartition(".")[2]
        for key, value in fixed.items():
            is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if key[-1] != short or key[-2:-1] != ("params",) or not is_number:
                continue
            if all(get_at(run.spec["deepspeed"], key) == value for run in runs[1:]):
                full = ".".join(("deepspeed", *key))
                yield (
                    f"{name} is swept, and {full} is {value} in every run, which is what the "
                    f"{key[0]} that DeepSpeed makes takes: write ${{{name}}} there, or sweep it"
                )

"""The commands: the core's, those of the tools in `hpcrun.tools`, and those of other packages."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Sequence

import click

from hpcrun import tools
from hpcrun.command import ACT, GROUPS, HOUSE, INSIDE, LOOK, PLAN, Command
from hpcrun.extensions import COMMANDS, attribute_at

CORE = (
    Command(
        "plan",
        PLAN,
        "Compile only: runs, resources, script, DeepSpeed JSON.",
        other_names="compile dry-run dryrun lint preview",
        examples={
            "hpcrun plan finetune.yaml": "every run, its script and configuration",
            "hpcrun plan finetune.yaml config.lr=3e-4 --sweep config.seed=0,1": "with other values",
        },
    ),
    Command(
        "check",
        PLAN,
        "Whether the cluster, as it is now, takes SPEC and runs it.",
        other_names="test-only validate verify",
        examples={
            "hpcrun check finetune.yaml": "against the cluster as it is now; nothing is submitted",
            "hpcrun check finetune.yaml resources.nodes=16 --json": "another shape, for a script",
        },
    ),
    Command(
        "submit",
        PLAN,
        "Check and submit an experiment or a sweep.",
        other_names="go launch sbatch start sweep train",
        examples={
            "hpcrun submit finetune.yaml": "again after a change: it goes on",
            "hpcrun submit finetune.yaml --sweep config.lr=1e-3,3e-4 -n": "what would be submitted",
            "hpcrun submit finetune.yaml --only failed": "only those that failed",
            "hpcrun submit -N 2 -- torchrun train.py --lr 0.1": "sbatch's options, no YAML",
        },
    ),
    Command(
        "run",
        PLAN,
        "Run in the foreground: in this allocation or on this machine.",
        other_names="srun",
        examples={
            "hpcrun run hello": "a first run, in seconds",
            "hpcrun run finetune.yaml config.lr=3e-4": "one of your own, here",
            "hpcrun run train.py --lr 3e-4": "without YAML; what follows the program is its own",
        },
    ),
    Command(
        "list",
        LOOK,
        "Experiments under the root.",
        other_names="experiments ls",
        examples={
            "hpcrun list": "what there is",
            "hpcrun list --root /shared/team": "of a colleague",
        },
    ),
    Command(
        "status",
        LOOK,
        "State of runs: step, metrics, attempt, cause.",
        other_names="jobs ps queue sinfo squeue st watch",
        examples={
            "hpcrun status": "all that is running or queued, and your newest experiment",
            "hpcrun status finetune --where config.lr=3e-4": "some of its runs",
            "hpcrun status finetune -w": "a live screen",
            "hpcrun status --by month": "hours and money of all your experiments",
        },
    ),
    Command(
        "logs",
        LOOK,
        "Output of runs, ranks and attempts; -f follows.",
        other_names="cat log output tail",
        examples={
            "hpcrun logs -f": "follow your newest experiment",
            "hpcrun logs finetune/0 --tail 50 --rank 0": "the end of one rank",
            "hpcrun logs finetune --grep Error --attempt all": "errors of all attempts",
        },
    ),
    Command(
        "results",
        LOOK,
        "Swept values beside metrics.",
        other_names="best metrics",
        examples={
            "hpcrun results finetune --sort loss": "best first",
            "hpcrun results finetune --format csv": "for pandas",
        },
    ),
    Command(
        "why",
        LOOK,
        "What ended each attempt, and what to do next.",
        other_names="cause explain sacct",
        examples={
            "hpcrun why finetune/0": "the story of one run",
            "hpcrun why": "your newest experiment, by cause",
        },
    ),
    Command(
        "show",
        LOOK,
        "One run: state, metrics, configuration, script, commit, path.",
        other_names="config describe info inspect scontrol",
        examples={
            "hpcrun show finetune/0": "state, metrics, commit, paths",
            "hpcrun show finetune/0 --config": "the whole configuration",
        },
    ),
    Command(
        "diff",
        LOOK,
        "What changed between two experiments or runs.",
        other_names="compare",
        examples={"hpcrun diff finetune/0 finetune/1": "what differs between two runs"},
    ),
    Command(
        "exec",
        INSIDE,
        "A command beside a live rank, with its environment.",
        other_names="attach nvidia-smi ssh",
        examples={
            "hpcrun exec finetune/0 nvidia-smi": "the GPUs of rank 0's node",
            "hpcrun exec finetune/0 --rank 5 env": "what rank 5 has in its environment",
        },
    ),
    Command(
        "shell",
        INSIDE,
        "A shell beside a live rank.",
        "hpcrun.cli.exec:shell",
        other_names="bash login pty",
        examples={"hpcrun shell finetune/0 --rank 5": "beside rank 5"},
    ),
    Command(
        "stacks",
        INSIDE,
        "Where the ranks of a live run are, in one command.",
        "hpcrun.cli.exec:stacks",
        other_names="backtrace gdb hang py-spy pyspy traceback",
        examples={"hpcrun stacks finetune/0": "where its ranks are"},
    ),
    Command(
        "cancel",
        ACT,
        "Cancel runs; they stay cancelled.",
        other_names="abort end kill scancel stop terminate",
        hurts=True,
        examples={
            "hpcrun cancel finetune/0": "one run",
            "hpcrun cancel finetune -n": "what would be cancelled",
        },
    ),
    Command(
        "requeue",
        ACT,
        "Start runs again, with their frozen code and plan.",
        other_names="continue rerun restart resume retry",
        hurts=True,
        examples={
            "hpcrun requeue finetune/0": "from its newest checkpoint",
            "hpcrun requeue finetune -n": "what would be started again",
        },
    ),
    Command(
        "update",
        ACT,
        "Change time, partition, qos, max_parallel of queued runs.",
        other_names="alter change modify reprioritize scontrol-update",
        examples={
            "hpcrun update finetune time=08:00:00": "of all that wait",
            "hpcrun update finetune/0-3 partition=long qos=low": "of some",
            "hpcrun update finetune max_parallel=8 -n": "what would be changed",
        },
    ),
    Command(
        "tag",
        ACT,
        "Put tags on runs, by which they are found again.",
        other_names="label tags untag",
        examples={
            "hpcrun tag finetune/0 +baseline": "put a tag on a run",
            "hpcrun status finetune tag=baseline": "the runs that have it",
            "hpcrun tag finetune -baseline": "take it away from all of its runs",
        },
    ),
    Command(
        "note",
        ACT,
        "Write down what people should know about runs.",
        "hpcrun.cli.tag:note",
        other_names="annotate comment notes",
        examples={
            'hpcrun note finetune/0 -m "loss spikes at 400"': "write a note",
            "hpcrun note finetune": "read those of all runs",
        },
    ),
    Command(
        "rename",
        ACT,
        "Give an experiment another name.",
        other_names="move mv",
        hurts=True,
        examples={"hpcrun rename finetune finetune-old": "and the name is free again"},
    ),
    Command(
        "clean",
        ACT,
        "Remove old checkpoints of runs that are over, and their logs.",
        other_names="gc prune",
        hurts=True,
        examples={
            "hpcrun clean finetune -n": "what would be removed",
            "hpcrun clean finetune --older-than 30d -y": "without a question",
        },
    ),
    Command(
        "delete",
        ACT,
        "Delete runs, or whole experiments, with all that they have.",
        other_names="remove rm",
        hurts=True,
        examples={
            "hpcrun delete finetune-old/0 -n": "what would go",
            "hpcrun delete finetune-old -y": "the whole experiment, without a question",
        },
    ),
    Command(
        "help",
        HOUSE,
        "A command's help, or a page of the documentation, offline.",
        other_names="docs man",
        examples={
            "hpcrun help": "all topics",
            "hpcrun help recovery": "what becomes of runs that fail",
        },
    ),
    Command(
        "schema",
        HOUSE,
        "JSON Schema of specs and profiles, for an editor.",
        "hpcrun.cli.help:schema",
        examples={"hpcrun schema > spec.schema.json": "for an editor, beside the specs"},
    ),
)
_CORE = {one.name: one for one in CORE}


@functools.cache
def own_commands() -> dict[str, Command]:
    """Return hpcrun's own commands by name, in the order of ``hpcrun --help``."""
    folders = (one.name for one in pkgutil.iter_modules(tools.__path__))
    modules = (importlib.import_module(f"hpcrun.tools.{name}") for name in folders)
    of_tools = [command for module in modules for command in module.COMMANDS]
    return {one.name: one for group in GROUPS for one in _in_order(group, of_tools)}


def groups() -> dict[str, dict[str, Command]]:
    """Return title -> the commands under it."""
    every = own_commands().values()
    return {title: {one.name: one for one in every if one.group == title} for title in GROUPS}


def find(name: str) -> Command | None:
    """Return a command of hpcrun's own; the tools are looked at for those that the core lacks."""
    return _CORE.get(name) or own_commands().get(name)


def load(name: str) -> click.Command | None:
    """Import a command, of hpcrun or of another package; None if there is none so named."""
    if one := find(name):
        command: click.Command = attribute_at(one.place or f"hpcrun.cli.{name}:command")
        command.epilog = _epilog(one)
        return command
    return COMMANDS.load(name) if name in COMMANDS else None


def near(name: str) -> str | None:
    """Return the command that somebody who typed ``name`` may have meant."""
    from difflib import get_close_matches

    every = own_commands()
    for one in every.values():
        if name.lower() in one.other_names.split():
            return one.name
    close = get_close_matches(name, every, n=1, cutoff=_NEARLY)
    harmless = [one.name for one in every.values() if not one.hurts]
    return next(iter(close or get_close_matches(name, harmless, n=1, cutoff=_SIMILAR)), None)


_SIMILAR, _NEARLY = 0.6, 0.83


def _in_order(group: str, of_tools: Sequence[Command]) -> list[Command]:
    """Return a group's commands, each tool's behind the one that it names."""
    named = [one for one in CORE if one.group == group]
    waiting = [one for one in of_tools if one.group == group]
    while waiting:
        names = ["", *(one.name for one in named)]
        placed = next((one for one in waiting if one.after in names), None)
        if placed is None:
            return named + waiting
        named.insert(names.index(placed.after), placed)
        waiting.remove(placed)
    return named


def _epilog(command: Command) -> str:
    """Return a command's examples as click prints them below its options."""
    shown = command.examples
    width = max(map(len, shown), default=0)
    lines = [f"  {line:<{width}}  {what}" for line, what in shown.items()]
    if any(len(line) > 76 for line in lines):
        lines = [text for line, what in shown.items() for text in (f"  # {what}", f"  {line}")]
    return "\n".join(["\b", "Examples:" if len(shown) > 1 else "Example:", *lines])

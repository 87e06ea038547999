"""The ``hpcrun`` command, which imports a command's module only when it runs."""

from __future__ import annotations

import atexit
import gc
import importlib
import os
import sys
from typing import Any

import click

from hpcrun import __version__, terminal
from hpcrun.cli import examples
from hpcrun.cli.global_options import global_options
from hpcrun.errors import EXIT_BUG, EXIT_INTERRUPTED, EXIT_OK, EXIT_USAGE, HpcrunError, Interrupted
from hpcrun.text import one_line

# Title -> the commands under it: the name, which is also that of the module, and what --help says.
GROUPS = {
    "Plan and submit": {
        "plan": "Compile only: runs, resources, script, DeepSpeed JSON.",
        "check": "Whether the cluster, as it is now, takes SPEC and runs it.",
        "estimate": "Memory, time, hours and money of SPEC's runs, before the queue.",
        "tune": "The fastest configuration of SPEC, found by trials.",
        "scaling": "SPEC's speed on one node or rank against many, measured.",
        "profile": "Where a step's time goes, its MFU and its memory, by rank.",
        "submit": "Check and submit an experiment or a sweep.",
        "run": "Run in the foreground: in this allocation or on this machine.",
    },
    "Look": {
        "list": "Experiments under the root.",
        "status": "State of runs: step, metrics, attempt, cause.",
        "top": "Runs on a live screen; keys show logs, causes, cancel, requeue.",
        "logs": "Output of runs, ranks and attempts; -f follows.",
        "results": "Swept values beside metrics.",
        "why": "What ended each attempt, and what to do next.",
        "show": "One run: state, metrics, configuration, script, commit, path.",
        "diff": "What changed between two experiments or runs.",
        "report": "All about runs in one HTML file that opens offline.",
        "export": "Runs without their checkpoints, as one archive.",
        "weights": "A run's weights, whole, as safetensors for other programs.",
    },
    "Look inside": {
        "exec": "A command beside a live rank, with its environment.",
        "shell": "A shell beside a live rank.",
        "stacks": "Where the ranks of a live run are, in one command.",
    },
    "Act": {
        "cancel": "Cancel runs; they stay cancelled.",
        "requeue": "Start runs again, with their frozen code and plan.",
        "tag": "Put tags on runs, by which they are found again.",
        "note": "Write down what people should know about runs.",
        "rename": "Give an experiment another name.",
        "clean": "Remove old checkpoints of runs that are over, and their logs.",
        "delete": "Delete runs, or whole experiments, with all that they have.",
        "drill": "Hurt a run on purpose, and see that it comes back.",
    },
    "House": {
        "init": "A profile of this cluster, and a project that runs on it as it is.",
        "doctor": "What of hpcrun's promises holds on this cluster; --nodes tests its nodes.",
        "help": "A command's help, or a page of the documentation, offline.",
        "completion": "Completion script for bash, zsh or fish.",
        "schema": "JSON Schema of specs and profiles, for an editor.",
    },
}
COMMANDS = {name: text for group in GROUPS.values() for name, text in group.items()}
_WIDEST = max(map(len, COMMANDS))
# What people type who know other programs.
_OTHER_NAMES = {
    "cancel": "abort end kill scancel stop terminate",
    "clean": "gc prune",
    "delete": "remove rm",
    "diff": "compare",
    "estimate": "cost costs fit memory price size",
    "doctor": "diagnose health nccl-tests selftest",
    "help": "docs man",
    "init": "configure new quickstart setup",
    "list": "experiments ls",
    "logs": "cat log output tail",
    "note": "annotate comment notes",
    "profile": "bottleneck flops mfu nsys perfetto trace tracing",
    "plan": "compile dry-run dryrun lint preview",
    "check": "test-only validate verify",
    "rename": "move mv",
    "requeue": "continue rerun restart resume retry",
    "results": "best metrics",
    "exec": "attach nvidia-smi ssh",
    "run": "srun",
    "shell": "bash login pty",
    "stacks": "backtrace gdb hang py-spy pyspy traceback",
    "show": "config describe info inspect scontrol",
    "status": "jobs ps queue sinfo squeue st watch",
    "submit": "go launch sbatch start sweep train",
    "tag": "label tags untag",
    "top": "htop monitor screen ui",
    "weights": "consolidate convert safetensors zero_to_fp32",
    "why": "cause explain sacct",
}
# A command that changes or ends runs is suggested to those who nearly typed it, to nobody else.
_HURT = {"cancel", "clean", "delete", "drill", "rename", "requeue"}
_SIMILAR, _NEARLY = 0.6, 0.83


# The key in click's ``meta`` for the words after the command's name.
_WORDS = "hpcrun.words"


class LazyGroup(click.Group):
    """Group of commands that are known by name and imported when they are needed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = importlib.import_module(f"hpcrun.cli.{cmd_name}").command
        assert isinstance(command, click.Command)
        command.epilog = examples.epilog(cmd_name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in COMMANDS:
            name, near = args[0], _near(args[0])
            hint = f" Did you mean '{near}'? {COMMANDS[near]}" if near else ""
            every = ", ".join(COMMANDS)
            raise click.UsageError(f"There is no command '{name}'.{hint}\nCommands: {every}.", ctx)
        ctx.meta[_WORDS] = args[1:]
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Invoke as click does, but end well if the reader of a pipe, such as `head`, is gone."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return EXIT_OK

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, commands in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl(
                    [(f"{name:<{_WIDEST}}", text) for name, text in commands.items()]
                )


def _near(name: str) -> str | None:
    """Return the command that somebody who typed ``name`` may have meant."""
    from difflib import get_close_matches

    for command, others in _OTHER_NAMES.items():
        if name.lower() in others.split():
            return command
    close = get_close_matches(name, COMMANDS, n=1, cutoff=_NEARLY)
    harmless = [command for command in COMMANDS if command not in _HURT]
    return next(iter(close or get_close_matches(name, harmless, n=1, cutoff=_SIMILAR)), None)


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="\b\nA first run, here and in seconds:\n  hpcrun run hello\n"
    "Topics, offline:\n  hpcrun help",
)
@global_options(None)
@click.version_option(__version__, "--version", message="hpcrun %(version)s")
def group(**_given: object) -> None:
    """Submit DeepSpeed experiments to Slurm, and see them through to their end."""


def _open_streams() -> None:
    """Open ``/dev/null`` as the standard streams that the caller has closed (``>&-``).

    Otherwise the next files that are opened would take their descriptors, and what is printed.
    """
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            stream = open(number, mode, closefd=False)  # noqa: SIM115 - until the end
            setattr(sys, name, stream)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and leave with the exit code that docs/cli.md promises."""
    # Thousands of runs are a million objects and no garbage: collect rarely, and not at exit.
    gc.set_threshold(2_000_000, 50, 100)
    atexit.register(gc.freeze)
    _open_streams()
    with terminal.guarded():
        _main(arguments)


def _main(arguments: list[str] | None) -> None:
    try:
        code = group.main(arguments, prog_name="hpcrun", standalone_mode=False)
    except (click.exceptions.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        sys.exit(EXIT_INTERRUPTED)
    except click.ClickException as error:
        if isinstance(error, click.NoSuchOption) and error.ctx is not None:
            from hpcrun.cli.foreign_options import explained

            error = explained(error, error.ctx, error.ctx.meta.get(_WORDS, ()))
        error.show()
        sys.exit(EXIT_USAGE)
    except HpcrunError as error:
        click.echo(str(error) if isinstance(error, Interrupted) else f"error: {error}", err=True)
        sys.exit(error.exit_code)
    except OSError as error:
        place = one_line(f"{error.filename}: ") if error.filename else ""
        click.echo(f"error: {place}{error.strerror or error}", err=True)
        sys.exit(1)
    except Exception:
        import traceback

        traceback.print_exc()
        click.echo("\nThis is a bug in hpcrun; please report it with the lines above.", err=True)
        sys.exit(EXIT_BUG)
    sys.exit(code if isinstance(code, int) else EXIT_OK)


if __name__ == "__main__":
    main()

"""The ``hpcrun`` command, which imports a command's module only when it runs."""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import os
import sys
from typing import Any

import click

from hpcrun import __version__, terminal
from hpcrun.errors import EXIT_BUG, EXIT_INTERRUPTED, EXIT_OK, EXIT_USAGE, HpcrunError, Interrupted
from hpcrun.text import one_line

# Name, which is also that of the module, and what --help says.
COMMANDS = {
    "plan": "Compile only: runs, resources, script, DeepSpeed JSON.",
    "submit": "Check and submit an experiment or a sweep.",
    "run": "Run in the foreground: in this allocation or on this machine.",
    "list": "Experiments under the root.",
    "status": "State of runs: step, metrics, attempt, cause.",
    "logs": "Output of runs, ranks and attempts; -f follows.",
    "results": "Swept values beside metrics.",
    "export": "Runs without their checkpoints, as one archive.",
    "report": "All about runs in one HTML file that opens offline.",
    "why": "What ended each attempt, and what to do next.",
    "drill": "Hurt a run on purpose, and see that it comes back.",
    "show": "One run: configuration, script, DeepSpeed JSON, path.",
    "diff": "What changed between two experiments or runs.",
    "cancel": "Cancel runs; they stay cancelled.",
    "requeue": "Start runs again, with their frozen code and plan.",
    "clean": "Remove old checkpoints of runs that are over, and their logs.",
    "completion": "Completion script for bash, zsh or fish.",
}


# The variable by which a shell asks for completions.
COMPLETE = "_HPCRUN_COMPLETE"


class LazyGroup(click.Group):
    """Group of commands that are known by name and imported when they are needed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = importlib.import_module(f"hpcrun.cli.{cmd_name}").command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in COMMANDS:
            from difflib import get_close_matches

            close = get_close_matches(args[0], COMMANDS, n=1)
            hint = f" Did you mean '{close[0]}'?" if close else ""
            raise click.UsageError(
                f"There is no command '{args[0]}'.{hint} Commands: {', '.join(COMMANDS)}.", ctx
            )
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Invoke as click does, but end well if the reader of a pipe, such as `head`, is gone."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return EXIT_OK

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "--version", message="hpcrun %(version)s")
def group() -> None:
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
    with contextlib.ExitStack() as stack:
        stack.enter_context(terminal.guarded())
        if COMPLETE in os.environ:
            stack.enter_context(importlib.import_module("hpcrun.cli.completion").quiet())
        _main(arguments)


def _main(arguments: list[str] | None) -> None:
    try:
        code = group.main(arguments, prog_name="hpcrun", standalone_mode=False)
    except (click.exceptions.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        sys.exit(EXIT_INTERRUPTED)
    except click.ClickException as error:
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

"""The ``hpcrun`` command, which imports a command's module only when it runs."""

from __future__ import annotations

import atexit
import gc
import itertools
import os
import sys
from typing import Any

import click

from hpcrun import __version__, terminal
from hpcrun.cli import commands
from hpcrun.cli.global_options import global_options
from hpcrun.errors import EXIT_BUG, EXIT_OK, EXIT_USAGE, HpcrunError, Interrupted, SpecError
from hpcrun.extensions import COMMANDS
from hpcrun.text import one_line

# The key in click's ``meta`` for the words after the command's name.
_WORDS = "hpcrun.words"
_CTRL_C = (click.exceptions.Abort, KeyboardInterrupt)


class LazyGroup(click.Group):
    """Group of commands that are known by name and imported when they are needed."""

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        # As click itself would find it, with all of shutil.
        extra.setdefault("terminal_width", max(min(_columns(), 80) - 2, 50))
        if "--on" in " ".join(args):
            args = _with_command_of_option(args)
        return super().make_context(info_name, args, parent, **extra)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(commands.own_commands())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return commands.load(cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0] if args else "-"
        if not (name.startswith("-") or commands.find(name) or name in COMMANDS):
            near = commands.near(name)
            hint = f" Did you mean '{near}'? {commands.own_commands()[near].about}" if near else ""
            hint = " Did you mean 'hpcrun --version'?" if name == "version" else hint
            every = ", ".join(commands.own_commands())
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
        widest = max(map(len, commands.own_commands()))
        for title, under in commands.groups().items():
            with formatter.section(title):
                formatter.write_dl(
                    [(f"{name:<{widest}}", command.about) for name, command in under.items()]
                )


def _with_command_of_option(words: list[str]) -> list[str]:
    """Return ``on CLUSTER …`` for ``--on CLUSTER`` before the command's name; else the words."""
    at = 0
    while at < len(words) and words[at].startswith("-"):
        name, equals, value = words[at].partition("=")
        if name == "--on" and (equals or at + 1 < len(words)):
            rest = words[at + 1 :] if equals else words[at + 2 :]
            return ["on", value if equals else words[at + 1], *words[:at], *rest]
        at += 2 if name == "--root" and not equals else 1
    return words


def _columns() -> int:
    """Return the width of the terminal, as `shutil.get_terminal_size` does."""
    given = os.environ.get("COLUMNS", "")
    if given.isdecimal() and int(given):
        return int(given)
    try:
        return os.get_terminal_size(1).columns or 80
    except OSError:
        return 80


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="\b\nA first run, here and in seconds:\n  hpcrun run hello\n"
    "Topics, offline:\n  hpcrun help",
)
@global_options(None)
@click.option("--on", metavar="CLUSTER", help="Run the command on that login node, through ssh.")
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
    except (Exception, KeyboardInterrupt) as error:
        words = sys.argv[1:] if arguments is None else arguments
        # Some of hpcrun's own words may be wrong; those of a program follow.
        own = itertools.takewhile(lambda one: one != "--" and not one.endswith(".py"), words)
        code = _tell_end(error, as_json="--json" in own)
    sys.exit(code if isinstance(code, int) else EXIT_OK)


def _tell_end(error: BaseException, *, as_json: bool) -> int:
    """Tell on stderr what has ended a command, or print it as a line of JSON; return its code."""
    # Python before 3.12 has another error of a Ctrl-C while a class is made.
    if any(isinstance(one, _CTRL_C) for one in (error, error.__cause__)):
        error = Interrupted("interrupted")
    elif isinstance(error, click.NoSuchOption) and error.ctx is not None:
        from hpcrun.cli.foreign_options import explained

        error = explained(error, error.ctx, error.ctx.meta.get(_WORDS, ()))
    elif isinstance(error, OSError):
        place = one_line(f"{error.filename}: ") if error.filename else ""
        error = HpcrunError(f"{place}{error.strerror or error}")
    hint: str | None = None
    code = EXIT_USAGE
    if isinstance(error, click.ClickException):
        message = error.format_message()
    elif isinstance(error, HpcrunError):
        message, hint, code = error.message, error.hint, error.exit_code
    else:
        import traceback

        traceback.print_exception(error)
        message = "This is a bug in hpcrun; please report it with the lines above."
        code = EXIT_BUG
    if as_json:
        import json

        found: dict[str, Any] = {"message": message, "hint": hint, "exit_code": code}
        if isinstance(error, SpecError):
            found["problems"] = [vars(one) for one in error.problems]
        click.echo(json.dumps({"error": found}), err=True)
    elif isinstance(error, click.ClickException):
        error.show()
    elif isinstance(error, HpcrunError):
        is_mistake = not isinstance(error, Interrupted)
        click.echo(f"error: {error}" if is_mistake else str(error), err=True)
    else:
        click.echo(f"\n{message}", err=True)
    return code


if __name__ == "__main__":
    main()

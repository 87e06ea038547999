"""Options and output of every command: data goes to stdout, messages to stderr."""

from __future__ import annotations

import contextlib
import functools
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpcrun import activity, resources
from hpcrun.cli.global_options import Function, global_options, value_of
from hpcrun.errors import UsageError
from hpcrun.host import expand_home, is_there
from hpcrun.shared_dataclass import dataclass
from hpcrun.slurm import patience
from hpcrun.state import permissions
from hpcrun.text import Say, entry, json_pieces, one_line, shortened

if TYPE_CHECKING:
    from hpcrun.compile import Compiled

_COMMON = ("root", "as_json", "quiet", "verbose", "no_color")
SPEC_HERE = "experiment.yaml"
PROGRAM_LINE = "hpcrun.program_line"
"""The key in click's ``meta`` for what stands in SPEC's place: `hpcrun.cli.program_line`."""
_MAKE_ONE = (
    "`hpcrun init` writes one for this machine, `hpcrun run hello` is a first run without a file"
)


@dataclass(frozen=True)
class Output:
    """The common options of a command."""

    root: Path | None
    """Where experiments live, from ``--root`` or HPCRUN_ROOT; None leaves it to the profile of the
    spec, and is ~/hpcrun-runs for commands that read."""
    json: bool
    """Print one JSON document on stdout instead of text."""
    verbosity: int
    """-1 quiet, 0 normal, 1 and more verbose."""
    color: bool
    """Allow ANSI colours on stdout."""

    def say(self, message: str) -> None:
        """Print a message on stderr, unless ``-q`` was given; its further lines are indented."""
        if self.verbosity >= 0:
            # The live screen takes over stderr, and would draw what is not visible. A terminal that
            # was closed does not end what goes on.
            with activity.printing(), contextlib.suppress(OSError):
                click.echo(entry(message), err=True)

    def say_aside(self) -> Say:
        """Return `say` for another thread: on stderr as it is now, whoever redirects it later."""
        stream, is_quiet, reporter = sys.stderr, self.verbosity < 0, activity.current()
        if is_quiet or reporter is None:
            return lambda message: None if is_quiet else click.echo(entry(message), file=stream)
        return reporter.say

    def line(self, text: str) -> None:
        """Print one line on stdout: names and values that were read cannot begin another."""
        with activity.printing():
            click.echo(one_line(text))

    def notes(self, chain: Sequence[Compiled]) -> None:
        """Print what the compiler has to say about specs that are right, once each."""
        for note in dict.fromkeys(note for one in chain for note in (*one.notes, *one.doubts)):
            self.say(note)

    def compiled(
        self, spec: str, overrides: Sequence[str], sweeps: Sequence[str]
    ) -> list[Compiled]:
        """Compile SPEC and what it depends on, as `hpcrun.compile.compile_chain`, with `notes`."""
        from hpcrun.compile import compile_chain

        with activity.doing(f"reading {spec}"):
            chain = compile_chain(spec, overrides, sweeps, root=self.root)
        self.notes(chain)
        return chain

    def data(self, value: Any) -> None:
        """Print a JSON document on stdout, strict: NaN and infinity are null."""
        for piece in json_pieces(value):
            click.echo(piece, nl=False)
        click.echo()


def root_option(root: Path) -> str:
    """Return the ``--root`` that reading commands need, as they do not know the profile's root."""
    from hpcrun.state.root_place import default_root

    known = Path(os.path.realpath(root)) == Path(os.path.realpath(default_root()))
    return "" if known else f" --root {shlex.quote(str(root))}"


def command_line() -> list[str]:
    """Return the command as it was typed, for the record."""
    return [Path(sys.argv[0]).name, *sys.argv[1:]]


def program_arguments(function: Function) -> Function:
    """Add `spec_arguments` to a `ProgramCommand`, and ``--save FILE`` for what it makes."""
    save = click.option(
        "--save", metavar="FILE", help="Of a program in SPEC's place: write its spec to a file."
    )
    return spec_arguments(save(function))


def spec_arguments(function: Function) -> Function:
    """Add ``[SPEC] [key=value …] [--sweep key=a,b …]``, on top of `common`.

    Passes ``spec: str``, ``overrides: tuple[str, ...]`` and ``sweeps: tuple[str, ...]``, as
    ``hpcrun.compile.compile_spec`` takes them.
    """
    sweep = click.option(
        "-s",
        "--sweep",
        "sweeps",
        multiple=True,
        metavar="key=a,b",
        help="Sweep a key over values; may be given several times.",
    )
    overrides = click.argument(
        "overrides",
        nargs=-1,
        metavar="[key=value | +key=value]...",
    )
    argument = click.argument("spec", required=False, metavar="[SPEC]")
    return argument(overrides(sweep(function)))


def common(function: Function) -> Function:
    """Add the `global_options`; pass ``output: Output``."""

    @global_options("HPCRUN_ROOT")
    @click.pass_context
    @functools.wraps(function)
    def wrapper(context: click.Context, *args: Any, **kwargs: Any) -> Any:
        root, as_json, quiet, verbose, no_color = (value_of(context, name) for name in _COMMON)
        kwargs = {name: value for name, value in kwargs.items() if name not in _COMMON}
        output = Output(
            root=Path(os.path.realpath(expand_home(root))) if root else None,
            json=as_json,
            verbosity=-1 if quiet else verbose,
            color=(sys.stdout.isatty() or os.environ.get("CLICOLOR_FORCE", "0") != "0")
            and not (no_color or "NO_COLOR" in os.environ),
        )
        told = None if quiet else sys.stderr
        with activity.tell_on(told), patience.reading(output.say_aside()):
            program_line, save = context.meta.get(PROGRAM_LINE), kwargs.pop("save", None)
            if program_line is not None:
                before = (kwargs["spec"],) if kwargs["spec"] else ()
                kwargs["overrides"] = (*before, *kwargs["overrides"])
                kwargs["spec"] = program_line.spec(
                    save, kwargs["overrides"], kwargs["sweeps"], output
                )
            elif save is not None:
                raise UsageError(
                    "--save writes the spec that is made of a program, and this has one",
                    hint="type the program in its place: train.py --lr 0.1",
                )
            elif {"spec", "overrides"} <= kwargs.keys():
                typed = kwargs["spec"], kwargs["overrides"]
                kwargs["spec"], kwargs["overrides"] = spec_or_here(*typed, output.say)
            return function(*args, output=output, **kwargs)

    return wrapper  # type: ignore[return-value]


def spec_or_here(
    spec: str | None, overrides: tuple[str, ...], say: Say
) -> tuple[str, tuple[str, ...]]:
    """Return SPEC and the overrides; SPEC is `SPEC_HERE`, and is said, where none was typed.

    Raises UsageError if none was typed, and this directory has no such file, or another user's.
    """
    if spec is not None and not is_override(spec):
        return spec, overrides
    if spec is not None:
        overrides = (spec, *overrides)
    if not is_there(Path(SPEC_HERE).is_file):
        later = [one for one in overrides if one.endswith((".yaml", ".yml"))]
        typed = f" before {shortened(spec, 60)!r}" if spec is not None else ""
        raise UsageError(
            f"no SPEC was typed{typed}, and there is no {SPEC_HERE} in {Path.cwd()}; accepted is "
            "the path of a spec, or the name of an experiment that ships",
            hint=f"SPEC stands first: {later[0]} {spec}" if later else _MAKE_ONE,
        )
    owner = permissions.stranger(SPEC_HERE)
    if owner is not None:
        raise UsageError(
            f"no SPEC was typed, and {SPEC_HERE} in {Path.cwd()} is {owner}'s, whose code you "
            "would run",
            hint=f"type ./{SPEC_HERE} if you mean it",
        )
    say(f"spec: {SPEC_HERE} of this directory")
    return SPEC_HERE, overrides


def is_override(word: str) -> bool:
    """Check whether a word in SPEC's place is ``key=value``, and no file of that name is there."""
    if "=" not in word and not word.startswith("+"):
        return False
    return word not in resources.configs("experiments") and not is_there(expand_home(word).exists)

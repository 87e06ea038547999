"""A program in SPEC's place: ``hpcrun submit -N 2 --gpus-per-node 8 -- torchrun train.py --lr 1``.

What stands before the program is hpcrun's and sbatch's, all that follows is the program's.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

import click

from hpcrun.cli.options import PROGRAM_LINE, Output, is_override
from hpcrun.errors import UsageError
from hpcrun.host import expand_home, is_there
from hpcrun.shared_dataclass import dataclass, replace
from hpcrun.text import Say

if TYPE_CHECKING:
    from hpcrun.compile.spec.spec_text import TypedSpec
    from hpcrun.compile.spec.typed_program import TypedProgram
    from hpcrun.compile.target.sbatch_request import SbatchOption

_SPECS = (".yaml", ".yml", ".json")
_PROGRAMS = (".py", ".sh", ".bash", ".sbatch", ".slurm")
_LAUNCHER = re.compile(
    r"python[\d.]*|torchrun|accelerate|deepspeed|composer|srun|mpirun|mpiexec(\.hydra)?|bash"
)
# Short options of both: sbatch's (tasks, QOS) where a value follows, else hpcrun's.
_CLASHING = {"-n": re.compile(r"\d+"), "-q": re.compile(r"[A-Za-z]\S*")}
_QUIET = re.compile(r"[qv]*")
# What no program has, and what any may have.
_EARLY = frozenset(("--sweep", "--dry-run", "--save", "--no-check", "--only", "-N", "--nodes"))
_EARLY |= {"--gpus-per-node", "--gres", "--partition"}
_ANYBODYS = frozenset(("-h", "--help", "-v", "--verbose", "-q", "--quiet", "--version"))
_ANYBODYS |= {"-o", "--output", "-i", "--input"}
# Where a program says all of its options.
_PARSER = re.compile(r"\badd_argument\(|@click\.|\btyper\b")
# Hydra's words that have it start runs by itself.
_MULTIRUN = re.compile(r"-m|--multirun|hydra/(?:launcher|sweeper)=.*")
_HYDRA_SWEEP = re.compile(r"(\+{0,2}[A-Za-z_][\w./]*)=([^\[{('\"]*,.*)")


@dataclass(frozen=True)
class ProgramLine:
    """A command line with a program in SPEC's place."""

    own: list[str]
    """hpcrun's options, with overrides."""
    typed: list[str]
    """These with sbatch's, as they were typed."""
    command: TypedProgram
    name: str
    """hpcrun's command."""
    options: frozenset[str]
    """The options of hpcrun's command, and sbatch's."""
    is_certain: bool
    """Two dashes say that all of it is the program's."""

    def _check_late(self, say: Say) -> None:
        """Tell of words behind the program that are hpcrun's, sbatch's or Hydra's by their names.

        Raises UsageError where the program cannot have meant them.
        """
        from hpcrun.cli.foreign_options import has_key
        from hpcrun.compile.source.marked_tree import Tree
        from hpcrun.compile.spec import typed_program
        from hpcrun.compile.target.entry import program_text

        words = list(self.command.program)
        first = next((at for at, word in enumerate(words) if word.endswith(".py")), len(words))
        text = program_text(words[first], 1 << 20) if words[first:] else None
        if text is None:
            return
        if typed_program.HYDRA.search(text):
            self._check_hydra(words, first)
        for at, word in enumerate(words[first + 1 :], first + 1):
            name = word.partition("=")[0]
            is_key = is_override(word) and has_key(Tree({}), name.removeprefix("+"))
            if (not is_key and name not in self.options) or f'"{name}"' in text.replace("'", '"'):
                continue
            if (
                not self.is_certain
                and not _names(text, name)
                and (name in _EARLY or _PARSER.search(text))
            ):
                value = [] if is_key or "=" in word else _value_of(words[at + 1 :])
                rest = [*words[:at], *words[at + 1 + len(value) :]]
                line = shlex.join(["hpcrun", self.name, *self.typed, word, *value, *rest])
                raise UsageError(
                    f"{word} behind the program is the program's, and {words[first]} has no such "
                    f"{'key' if is_key else 'option'}",
                    hint="hpcrun's and sbatch's words stand before the program; two dashes before "
                    f"it say that all behind them is its own:\n{line}",
                )
            say(
                f"note: {word} behind the program is the program's; what is hpcrun's or sbatch's "
                "stands before it"
            )

    def _check_hydra(self, words: Sequence[str], first: int) -> None:
        """Raise UsageError if a program of Hydra's is to start its runs by itself."""
        before, after = words[: first + 1], words[first + 1 :]
        own = [word for word in after if _MULTIRUN.fullmatch(word)]
        swept = [found for word in after if (found := _HYDRA_SWEEP.fullmatch(word))]
        if not own and not swept:
            return
        given = [one[0] for one in swept]
        rest = [*before, *(word for word in after if word not in (*own, *given))]
        sweeps = [each for one in swept for each in ("--sweep", f"{one[1].lstrip('+')}={one[2]}")]
        raise UsageError(
            f"{[*own, *given][0]}: Hydra would start several runs in one; "
            "hpcrun starts each as a run of its own",
            hint="type\n" + shlex.join(["hpcrun", self.name, *self.typed, *sweeps, *rest]),
        )

    def spec(
        self, save: str | None, overrides: Sequence[str], sweeps: Sequence[str], output: Output
    ) -> TypedSpec | str:
        """Return the spec that is made of it, and show it; with ``save`` the path of its file.

        Raises UsageError if a word cannot be said in a spec, or that file is there.
        """
        command = replace(self.command, sweeps=sweeps)
        place = None if save is None else _place(save)
        made = command.spec(place)
        for note in command.notes:
            output.say(f"note: {note}")
        self._check_late(output.say)
        where = "--save FILE writes it" if place is None else f"written to {save}"
        if place is not None:
            from hpcrun.compile import compile_chain
            from hpcrun.compile.spec.typed_program import whole_text
            from hpcrun.state import files

            # Nothing is written of a line with a mistake.
            compile_chain(made, overrides, sweeps, root=output.root)
            made = replace(made, text=whole_text(made, overrides, sweeps))
            files.write_bytes(place, made.text.encode())
        output.say(f"the spec, {where}:\n{made.text.rstrip()}")
        return made if save is None else save


def _names(text: str, word: str) -> bool:
    """Check whether a program's text has the name of an option or a key; True of Hydra's."""
    from hpcrun.compile.spec.typed_program import HYDRA

    name = re.escape(word.lstrip("-+").replace("-", "_"))
    form = rf"\b{name}\b"
    if _PARSER.search(text):
        # A field, or a parameter, of which a parser makes an option; what it compares words with.
        form = rf"\b{name}\s*:" if word[:1] == "-" else rf"""["']{name}\b"""
    is_there = len(name) > 1 and re.search(form, text) is not None
    return is_there or HYDRA.search(text) is not None


def _value_of(rest: Sequence[str]) -> Sequence[str]:
    """Return the next word if it is an option's value."""
    return rest[:1] if rest and not rest[0].startswith("-") else ()


def _place(save: str) -> Path:
    """Return the path of a spec that is to be written; raise UsageError where it cannot be."""
    place = expand_home(save).absolute()
    if os.path.lexists(place):
        raise UsageError(
            f"--save: {save} is there already; nothing was written", hint="name another file"
        )
    if place.suffix not in _SPECS[:2]:
        raise UsageError(
            f"--save: found {save}; accepted is the path of a spec",
            hint=f"--save {place.stem}.yaml",
        )
    if Path(os.path.realpath(place.parent)) != Path(os.path.realpath(Path.cwd())):
        raise UsageError(
            f"--save: {save} lies elsewhere, and paths in a spec start where it lies",
            hint=f"--save {place.name}, or cd to {place.parent} first",
        )
    return place


class ProgramCommand(click.Command):
    """Command that takes a program in SPEC's place, behind its own options and sbatch's."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        line = _split(self, ctx, args)
        if line is not None:
            ctx.meta[PROGRAM_LINE] = line
            args = line.own
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Return the pieces of the usage line, with the program."""
        pieces = super().collect_usage_pieces(ctx)
        return [piece.replace("[SPEC]", "[SPEC | PROGRAM ...]") for piece in pieces]


def _split(command: click.Command, ctx: click.Context, args: Sequence[str]) -> ProgramLine | None:
    """Return the line with a program in SPEC's place; None where that is a spec, or nothing."""
    options = [one for one in command.params if isinstance(one, click.Option)]
    known = {name: one for one in options for name in one.opts}
    rest = list(args)
    own: list[str] = []
    foreign: list[tuple[str, SbatchOption]] = []
    while rest:
        word = rest[0]
        if word == "--" or _is_program(word):
            from hpcrun.compile.target.sbatch_request import SHORT
            from hpcrun.compile.target.slurm_options import SBATCH_OPTIONS

            program = rest[1:] if word == "--" else rest
            if not program or program[0].endswith(_SPECS):
                return None
            names = {f"--{one}" for one in SBATCH_OPTIONS} | {f"-{one}" for one in SHORT}
            names = (names | known.keys()) - _ANYBODYS
            made, typed = _command(foreign, program, ctx), list(args[: len(args) - len(rest)])
            is_certain = word == "--"
            return ProgramLine(own, typed, made, command.name or "", frozenset(names), is_certain)
        if word[:1] != "-" or word == "-":
            if not is_override(word):
                if foreign:
                    _check_units(word, foreign[-1], rest)
                return None
            own.append(rest.pop(0))
            continue
        is_long = word[:2] == "--"
        name = word.partition("=")[0] if is_long else word[:2]
        value = word[len(name) :].removeprefix("=")
        option = known.get(name)
        if option is None or _is_slurms(name, value, rest[1:]):
            from hpcrun.compile.target.sbatch_request import take_option

            foreign.append((word, taken := take_option(rest)))
            if taken.name == "wrap":
                raise UsageError(
                    "--wrap: the program stands at the end of the line, behind two dashes",
                    hint=f"hpcrun {command.name} … -- {taken.value}",
                )
            continue
        own.append(rest.pop(0))
        takes = not (option.is_flag or option.count)
        if takes and rest and (word == name):
            own.append(rest.pop(0))
    return None


def _check_units(word: str, before: tuple[str, SbatchOption], rest: Sequence[str]) -> None:
    """Raise UsageError for a unit that is a word of its own: ``--mem 32 GB train.py``."""
    if word.isalpha() and any(map(_is_program, rest[1:])):
        option, taken = before
        name = option.partition("=")[0]
        raise UsageError(
            f"{word} stands between options and the program, and is neither",
            hint=f"a number and its unit are one word: {name} {taken.value}{word}; a program "
            f"stands behind two dashes: -- {shlex.join(rest)}",
        )


def _is_slurms(name: str, value: str, rest: Sequence[str]) -> bool:
    """Check whether a short option of both is sbatch's, as it has a value."""
    form = _CLASHING.get(name)
    if form is None:
        return False
    if value:
        return form.fullmatch(value) is not None and not _QUIET.fullmatch(value)
    following = rest[0] if rest else "--"
    is_next = following == "--" or is_override(following) or _is_program(following)
    return form.fullmatch(following) is not None and not is_next


def _is_program(word: str) -> bool:
    """Check whether a word in SPEC's place is a program."""
    if word[:1] == "-" or word.endswith(_SPECS) or is_override(word):
        return False
    path, name = expand_home(word), PurePath(word).name
    if name.endswith(_PROGRAMS) or _LAUNCHER.fullmatch(name):
        return True
    return "/" in word and is_there(path.is_file) and os.access(path, os.X_OK)


def _command(
    foreign: Sequence[tuple[str, SbatchOption]], program: Sequence[str], ctx: click.Context
) -> TypedProgram:
    """Return what was typed; raise UsageError of an option that neither hpcrun nor sbatch has."""
    from hpcrun.cli.foreign_options import launchers_key
    from hpcrun.compile.spec.typed_program import TypedProgram
    from hpcrun.compile.target.slurm_options import SBATCH_OPTIONS

    found: dict[str, SbatchOption] = {}
    notes = []
    for typed, option in foreign:
        if option.name not in SBATCH_OPTIONS:
            name = typed.partition("=")[0]
            known = [one for param in ctx.command.params for one in param.opts if one[:2] == "--"]
            near = get_close_matches(
                name, [*known, *(f"--{one}" for one in SBATCH_OPTIONS)], 1, 0.8
            )
            key = launchers_key(option.name)
            value = option.value or "VALUE"
            hint = f"type {key}={value}" if key else "".join(f"did you mean {one}?" for one in near)
            if option.name == "name":
                hint = f"type -J {value}"
            own = [typed] if "=" in typed or not option.value else [typed, option.value]
            others = " … " if foreign[1:] else " "
            line = f"hpcrun {ctx.info_name}{others}{shlex.join([*program, *own])}"
            program_first = f"options of {PurePath(program[0]).name} stand behind it: {line}"
            raise UsageError(
                f"{name} is no option of hpcrun's, nor of sbatch's",
                hint=f"{hint}; {program_first}" if hint else program_first,
            )
        if option.name == "distribution" and "=" in (option.value or ""):
            raise UsageError(
                f"{typed} {option.value}: -m is sbatch's --distribution here",
                hint=f"a sweep is --sweep {option.value}",
            )
        if option.name in found:
            notes.append(f"{found[option.name].text}: is given again, the last counts")
        found[option.name] = option
    return TypedProgram(program, found, notes=notes)

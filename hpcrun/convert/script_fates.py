"""The fates of all lines of a script, once it is known what of it is carried over."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from hpcrun.convert.draft import job_environment
from hpcrun.convert.draft.job_environment import JobEnvironment
from hpcrun.convert.line_fates import CARRIED, LEFT, NOT_NEEDED, LineFate, quoted
from hpcrun.convert.script import sbatch_lines
from hpcrun.convert.script.walk_state import StartedProgram, WalkResult
from hpcrun.convert.shell.shell_syntax import ParsedScript, ShellBlock, ShellNode


class ScriptFates:
    """What became of the lines of one script.

    Parameters
    ----------
    chosen
        The program that is carried over; None without one.
    used
        The variables that its line is made of.
    """

    def __init__(
        self,
        lines: Sequence[str],
        parsed: ParsedScript,
        walk: WalkResult,
        chosen: StartedProgram | None,
        environment: JobEnvironment,
        used: set[str],
    ) -> None:
        self._lines, self._parsed, self._walk = lines, parsed, walk
        self._chosen, self._environment, self._used = chosen, environment, used

    def all(self, made: Sequence[LineFate]) -> list[LineFate]:
        """Return what became of each line, in the order of the script.

        ``made`` are the fates of the #SBATCH lines.
        """
        fates = list(made)
        broken = {line for line, _ in self._parsed.problems}
        for node, fate in self._walk.fates.values():
            if fate.line in broken and fate.fate == LEFT:
                continue
            fates.append(self._final(node, fate))
        for line, message in self._parsed.problems:
            text = quoted(self._lines[line - 1])
            what = f"{message}: bash would not read this script"
            fates.append(LineFate(line, line, text, LEFT, what, "correct it"))
        covered = {at for one in fates for at in range(one.line, one.last + 1)}
        for number in self._uncovered(covered):
            text = quoted(self._lines[number - 1])
            fates.append(LineFate(number, number, text, LEFT, *self._unread(number)))
        fates = [one.visible() for one in fates]
        return sorted(dict.fromkeys(fates), key=lambda one: (one.line, -one.last))

    def _unread(self, number: int) -> tuple[str, str]:
        begun = self._parsed.unread_from
        if begun is not None and number >= begun:
            return f"{self._parsed.unread_why}, from line {begun} on", "correct the script"
        return "it was not reached", "write what it means into the spec"

    def _uncovered(self, covered: set[int]) -> Iterator[int]:
        for number, line in enumerate(self._lines, 1):
            is_comment = line.lstrip().startswith("#") and not sbatch_lines.is_directive(line)
            if line.strip() and not is_comment and number not in covered:
                yield number

    def _final(self, node: ShellNode, fate: LineFate) -> LineFate:
        """Return the fate of a line that depended on what the whole script does."""
        if fate.fate:
            return fate
        place = (fate.line, fate.last, fate.text)
        chosen = self._chosen
        if fate.what in ("a program", "a loop"):
            if chosen is not None and (
                node is chosen.node or (isinstance(node, ShellBlock) and node.line in chosen.loops)
            ):
                what = "entry, args and config" if fate.what == "a program" else "sweep"
                return LineFate(*place, CARRIED, what)
            what = "a second program: a run of hpcrun has one"
            hint = "write a spec of its own, which may name this one in depends_on"
            return LineFate(*place, LEFT, what, hint)
        found = [self._of_name(name) for name in fate.what.split(", ")]
        for kind in (LEFT, CARRIED, NOT_NEEDED):
            chosen_ones = [one for one in found if one[0] == kind]
            if chosen_ones:
                what = "; ".join(dict.fromkeys(one[1] for one in chosen_ones))
                return LineFate(*place, kind, what, chosen_ones[0][2])
        return LineFate(*place, NOT_NEEDED, "it sets nothing")

    def _of_name(self, name: str) -> tuple[str, str, str | None]:
        walk, environment, used = self._walk, self._environment, self._used
        if name in environment.fates:
            return environment.fates[name]
        value = walk.variables.get(name)
        kinds = {one.kind for one in walk.unknowns.of(value if isinstance(value, str) else "")}
        plain = value if isinstance(value, str) else ""
        meets = bool(kinds & {"nodes", "random"}) and " " not in plain.strip()
        if name in used and name not in job_environment.OWN and not meets:
            return CARRIED, "its value is in the program's line", None
        if name in walk.decides and name not in used:
            return NOT_NEEDED, "conditions are decided by it, as the script stands", None
        if (
            meets
            or name in job_environment.OWN
            or re.search(r"port|addr|node|host|rank|rdzv", name, re.I)
        ):
            return NOT_NEEDED, "hpcrun gives its ranks what they need to meet", None
        return NOT_NEEDED, "nothing that is carried over uses it", None

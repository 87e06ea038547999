"""Launches by a command of a script, also within other launches: ``bash -c`` and ``eval``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import PurePath

from hpcrun.convert.line_fates import LEFT, NOT_NEEDED, is_log, of_command, quoted
from hpcrun.convert.script import launch_line
from hpcrun.convert.script.launch_line import ProgramLaunch
from hpcrun.convert.script.walk_state import StartedProgram, WalkState
from hpcrun.convert.shell.shell_conditions import is_condition
from hpcrun.convert.shell.shell_syntax import (
    Redirect,
    ShellBlock,
    ShellCommand,
    ShellNode,
    chains,
    parse,
)

ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\[[^\]]*\])?(\+?)=(.*)", re.DOTALL)
HOSTS = re.compile(
    r"host_?file|machine_?file|nodes?_?(?:file|list)|hostnames?\b|slots=|SLURM_JOB_NODELIST|SLURM_NODELIST",
    re.IGNORECASE,
)
FILTERS = ("tee", "cat", "grep", "sed", "awk")
_FILE = re.compile(r"[\w.${}-]+")
MOST_CALLS = 12


class LaunchWalk(WalkState):
    """Notes the programs that commands start."""

    def _nodes(self, nodes: Sequence[ShellNode]) -> None:
        raise NotImplementedError

    def _start(self, node: ShellCommand, words: list[str], pairs: dict[str, str]) -> None:
        text = " ".join(words)
        written = " ".join(one.target for one in node.redirects)
        launch = launch_line.read(words)
        hosts = bool(HOSTS.search(written) or (HOSTS.search(text) and len(words) < 8))
        inner = [] if launch is None else program_words(launch)
        first = PurePath(words[0]).name or words[0]
        known = of_command(
            [self.result.unknowns.shown(word) for word in words],
            hosts and first in ("echo", "cat", "sed", "scontrol", "rm", "touch", "printf", "awk"),
        )
        if known is None and launch is not None and launch.inner_script is not None:
            launch.environment = {**pairs, **launch.environment}
            self._inner(node, launch.inner_script, {}, launch)
            return
        if known is None and inner and launch is not None and launch.python is None:
            known = of_command(inner, hosts)
        if (
            known is None
            and launch is not None
            and launch.python
            and hosts
            and ("hostfile" in launch.target or (written and HOSTS.search(written)))
        ):
            known = NOT_NEEDED, "hpcrun starts the ranks of all nodes: there is no hostfile", None
        if known is None and launch is not None and launch.target == "-c":
            if node.redirects or hosts:
                known = NOT_NEEDED, "it prints", None
            else:
                what, hint = "it is a Python line of its own", "put it into the program"
                known = LEFT, what, hint
        if known is None and launch is not None and launch.module in ("pip", "venv", "ensurepip"):
            known = LEFT, "packages are installed once, not by each job", "do it before submit"
        if known is not None:
            if known[0] == NOT_NEEDED and self._writes(node) and not hosts:
                known = LEFT, "it writes a file", "write it before `hpcrun submit`, beside the spec"
            self._say(node, *known)
            return
        if launch is None:
            what = "it starts nothing that could be read"
            self._say(node, LEFT, what, "write the program into entry")
            return
        launch.environment = {**pairs, **launch.environment}
        self._program(node, launch)

    def _writes(self, node: ShellCommand) -> bool:
        """Check whether what a command prints goes to a file that is no log."""
        return any(self._kept(node, one) for one in node.redirects)

    def _kept(self, node: ShellNode, one: Redirect) -> bool:
        """Check whether a redirection makes a file that is no log."""
        if one.operator not in (">", ">>", ">|", "&>", "&>>", ">&") or not one.target:
            return False
        name = PurePath(one.target.strip("\"'")).name
        if not self._named:
            for number, line in enumerate(self._source, 1):
                for each in _FILE.findall(line):
                    self._named.setdefault(each, set()).add(number)
        numbers = self._named.get(name, set())
        is_named = len(numbers) > sum(at in numbers for at in range(node.line, node.last + 1))
        return not is_log(one.target, is_named)

    def _redirected(self, node: ShellNode, launch: ProgramLaunch) -> None:
        """Note that a program read from a file, or wrote to one."""
        for one in node.redirects:
            shown = quoted(f"{one.operator} {one.target}")
            if one.operator in ("<", "<<", "<<-", "<<<") and one.target != "/dev/null":
                launch.lost.append(f"{shown}: ranks have no input; give the program an option")
            elif self._kept(node, one):
                launch.lost.append(f"{shown}: what ranks print is kept; see `hpcrun logs`")

    def _program(self, node: ShellCommand, launch: ProgramLaunch) -> None:
        place = self._directory[-1]
        self._redirected(node, launch)
        found = StartedProgram(launch, node, place, frozenset(self._reads), self._loops)
        self.result.programs.append(found)
        self._say(node, "", "a program")

    def _beside(self, nodes: Sequence[ShellNode]) -> Iterator[str]:
        """Yield the commands that do something, and start no program."""
        for node in nodes:
            if isinstance(node, ShellBlock) or is_condition(node):
                continue
            raw = [one for one in node.words if one != "!" and not ASSIGNMENT.fullmatch(one)]
            words = [word for one in raw for word in self._expander.words(one)]
            if node.joined == "|" and words[:1] and words[0] in FILTERS:
                continue
            fate = of_command(words, hosts=False) if words else None
            if words and words[0] not in self._functions and (fate is None or fate[0] == LEFT):
                yield self.result.unknowns.shown(" ".join(words))

    def _inner(
        self,
        node: ShellCommand,
        text: str,
        pairs: dict[str, str],
        outer: ProgramLaunch | None = None,
    ) -> None:
        """Read the script of ``bash -c`` or ``eval``: the program in it counts."""
        parsed = parse(text)
        reads = set(self._reads)
        self._calls += 1
        if self._calls > MOST_CALLS:
            self._say(node, LEFT, "it is nested too deeply")
            return
        before = len(self.result.programs)
        inside, self._is_inner = self._is_inner, True
        others: list[str] = []
        try:
            for chain in chains(parsed.nodes):
                known = len(self.result.programs)
                self._nodes(chain)
                reads |= self._reads
                found = {id(one.node) for one in self.result.programs[known:]}
                if not (found and len(chain) == 1):
                    others += self._beside([one for one in chain if id(one) not in found])
            others += self._left_inside
        finally:
            self._is_inner = inside
            self._left_inside = []
        self._calls -= 1
        for one in self.result.programs[before:]:
            one.node, one.reads = node, one.reads | reads
            one.launch.lost += [f"{quoted(each)}: it stands beside the program" for each in others]
            if outer is not None:
                within(outer, one.launch)
        if len(self.result.programs) == before:
            known_all = not others and not parsed.unread_from
            what = "it starts no program" if known_all else "what it starts could not be read"
            self._say(node, NOT_NEEDED if known_all else LEFT, what)
        else:
            self._say(node, "", "a program")


def within(outer: ProgramLaunch, inner: ProgramLaunch) -> None:
    """Put srun, containers and assignments around ``bash -c`` to the program in it."""
    inner.is_step = inner.is_step or outer.is_step
    inner.steps = {**outer.steps, **inner.steps}
    inner.wrapper = [*outer.wrapper, *inner.wrapper]
    inner.environment = {**outer.environment, **inner.environment}
    inner.not_needed = [*outer.not_needed, *inner.not_needed]
    inner.lost = [*outer.lost, *inner.lost]
    if outer.launcher:
        inner.launcher = inner.launcher or outer.launcher


def program_words(launch: ProgramLaunch) -> list[str]:
    """Return the program and its arguments."""
    return [launch.target, *launch.args] if launch.target else []

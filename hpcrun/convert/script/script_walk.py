"""Walks through a script as bash would, without executing any of it.

Variables get the values that the script gives them; what runs on a node is an unknown. The walk
collects the lines that make the environment, the variables and the programs that are started.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from pathlib import PurePath

from hpcrun.convert.line_fates import CARRIED, LEFT, NOT_NEEDED, of_command, quoted
from hpcrun.convert.script.inner_launch import ASSIGNMENT, HOSTS
from hpcrun.convert.script.walk_commands import CHANGE, CommandWalk
from hpcrun.convert.script.walk_state import AssignedName, WalkResult
from hpcrun.convert.shell import shell_conditions
from hpcrun.convert.shell.shell_conditions import ChainState, is_condition, is_question
from hpcrun.convert.shell.shell_syntax import ShellBlock, ShellCommand, ShellNode
from hpcrun.convert.shell.shell_tokens import ShellSyntaxError
from hpcrun.convert.shell.shell_values import MARK

_COUNTER = re.compile(r"\(\(\s*(\w+)\s*=\s*(-?\d+)\s*;\s*\1\s*(<=?)\s*(\S+?)\s*;\s*\1\+\+\s*\)\)")
MOST_STEPS = 20_000
_MOST_JOINED = 10


class _TooLong(Exception):
    """The script's loops have more steps than are followed."""


class ScriptWalk(CommandWalk):
    """One walk through a script."""

    def walk(self, nodes: Sequence[ShellNode]) -> WalkResult:
        """Walk through the nodes of the script."""
        self._names = set(_assigned(nodes))
        with contextlib.suppress(_TooLong):
            self._nodes(nodes)
        self.result.steps = self._steps
        for name, block in self._functions.items():
            if name in self._called:
                continue
            if name in self._handlers:
                self._handler(block.branches[0][1])
                why = "hpcrun hears the signals, saves and requeues (recovery)"
            else:
                why = "nothing calls this function"
            self._all(block, NOT_NEEDED, why)
        return self.result

    def _nodes(self, nodes: Sequence[ShellNode]) -> None:
        chain: list[ShellNode] = []
        state = ChainState()
        for at, node in enumerate(nodes):
            self._steps += 1
            if self._steps > MOST_STEPS:
                raise _TooLong
            if not node.joined or not at:
                chain, state = [], ChainState()
            runs = state.runs(node.joined if at else "")
            try:
                if runs is False:
                    self._all(node, NOT_NEEDED, f"line {chain[0].line} decides otherwise")
                elif runs is None:
                    self._may_run(nodes, at, chain)
                else:
                    self._one(node, nodes[at - 1] if at and node.joined else None)
                    state.ran(node, self._decide)
            except ShellSyntaxError as error:
                self._all(node, LEFT, error.message, "write what it means into the spec")
            chain.append(node)

    def _one(self, node: ShellNode, before: ShellNode | None) -> None:
        if isinstance(node, ShellBlock):
            programs = len(self.result.programs)
            self._block(node)
            for one in self.result.programs[programs:]:
                self._redirected(node, one.launch)
        elif is_condition(node) and not CHANGE.search(node.words[-1]) and node.words[0] != ":":
            self._say(node, NOT_NEEDED, "it is a condition, which changes nothing")
        else:
            self._command(node, before)

    def _may_run(self, nodes: Sequence[ShellNode], at: int, chain: Sequence[ShellNode]) -> None:
        """Look at what stands after a ``&&`` or ``||`` that only a job can decide."""
        node = nodes[at]
        first, last = chain[0].line, node.last
        begin = at - len(chain)
        stands_alone = not (begin and nodes[begin - 1].last >= first) and not (
            at + 1 < len(nodes) and nodes[at + 1].line <= last
        )
        if (
            _is_environment(node)
            and not (self._loops or self._is_inner)
            and stands_alone
            and len(chain) < _MOST_JOINED
            and all(is_condition(one) or is_question(one) for one in chain)
        ):
            self.result.setup.append(("\n".join(self._source[first - 1 : last]).strip(), node))
            self._say(node, CARRIED, "environment.setup")
            return
        self._undecided([node], chain if node.joined == "&&" else [])

    def _block(self, node: ShellBlock) -> None:
        if node.kind == "function":
            self._functions[node.header[0]] = node
        elif node.kind in ("group", "subshell"):
            if node.kind == "subshell":
                self._subshell(node.branches[0][1])
            else:
                self._nodes(node.branches[0][1])
            self._say(node, NOT_NEEDED, "it groups commands")
        elif node.kind == "if":
            self._if(node)
        elif node.kind == "case":
            self._case(node)
        elif node.kind == "for" or node.kind == "select":
            self._for(node)
        else:
            self._while(node)

    def _subshell(self, nodes: Sequence[ShellNode]) -> None:
        """Walk through nodes that change nothing of what follows."""
        directory, programs = list(self._directory), len(self.result.programs)
        before = dict(self.result.variables)
        self._nodes(nodes)
        self._directory = directory
        # What its program finds in its environment is looked up at the end.
        starts = len(self.result.programs) > programs
        kept = set(self.result.exported) if starts else set()
        after = {name: value for name, value in self.result.variables.items() if name in kept}
        self.result.variables = {**before, **after}

    def _decide(self, condition: Sequence[ShellNode]) -> bool | None:
        self._in_condition = True
        self._reads = set()
        before = set(self.result.assumed)
        try:
            return shell_conditions.decide(condition, self._expander)
        except ShellSyntaxError:
            return None
        finally:
            self._in_condition = False
            self.result.decides |= self._reads
            for name in set(self.result.assumed) - before:
                self.result.assumed[name] = condition[0].line if condition else 0

    def _if(self, node: ShellBlock) -> None:
        if self._only_environment(node):
            self._raw_setup(node)
            self._all(node, CARRIED, "environment.setup")
            return
        undecided = False
        for at, (condition, body) in enumerate(node.branches):
            is_else = not condition
            if any(map(_has_program, condition)):
                self._nodes(condition)
            value = True if is_else else self._decide(condition)
            text = " ".join(self._source[node.line - 1].split())
            if value is None:
                undecided = True
                self._undecided(body, condition)
                continue
            if value:
                self._nodes(body)
                for _, other in node.branches[at + 1 :]:
                    for one in other:
                        self._all(one, NOT_NEEDED, f"line {node.line} decides otherwise")
                break
            for one in body:
                self._all(one, NOT_NEEDED, f"as the script stands, {quoted(text)} does not hold")
        what = "only a job can tell" if undecided else "it is decided as the script stands"
        self._say(node, NOT_NEEDED, what)

    def _only_environment(self, node: ShellBlock) -> bool:
        """Check whether an ``if`` only changes the environment, by what a job finds there."""
        commands = [one for _, body in node.branches for one in body]
        has_condition = self._decide(node.branches[0][0]) is None
        starts = any(_has_program(one) for condition, _ in node.branches for one in condition)
        return (
            has_condition and not starts and bool(commands) and all(map(_is_environment, commands))
        )

    def _undecided(self, body: Sequence[ShellNode], condition: Sequence[ShellNode]) -> None:
        """Look into a branch that only a job can choose: resuming, or a program."""
        looked = _looked_for(condition)
        for one in body:
            if self._is_resume(one, looked):
                continue
            if _has_program(one):
                self._nodes([one])
                continue
            lines = self._source[one.line - 1 : one.last]
            hosts = any(HOSTS.search(line[:2_000]) for line in lines)
            self._untaken(one, hosts)

    def _untaken(self, node: ShellNode, hosts: bool) -> None:
        if isinstance(node, ShellBlock):
            for condition, body in node.branches:
                for one in (*condition, *body):
                    self._untaken(one, hosts)
            self._say(node, NOT_NEEDED, "only a job can tell")
            return
        words = [one for one in node.words if not ASSIGNMENT.fullmatch(one)]
        fate = of_command(words, hosts) if words else None
        if fate is not None and fate[0] == NOT_NEEDED:
            self._say(node, *fate)
            return
        what = f"whether it is done, only a job can tell (line {node.line})"
        self._say(node, LEFT, what, "write into the spec what is wanted")

    def _is_resume(self, node: ShellNode, looked: str | None) -> bool:
        """Note an assignment of arguments that are given where something was saved."""
        if not isinstance(node, ShellCommand) or not looked:
            return False
        found = [ASSIGNMENT.fullmatch(one) for one in node.words]
        if not found or not all(found):
            return False
        one = found[-1]
        assert one is not None
        self._reads = set()
        value = self._expander.text(one[4])
        if not re.search(r"resume|ckpt|checkpoint|load|restart|init_from", value, re.IGNORECASE):
            return False
        self.result.resumes.append((self._expander.text(looked), one[1], value))
        self.result.resume_reads |= self._reads
        self._say(node, CARRIED, "recovery.resume")
        return True

    def _case(self, node: ShellBlock) -> None:
        self._in_condition = True
        self._reads = set()
        value = self._expander.text(node.header[0])
        self._in_condition = False
        self.result.decides |= self._reads
        chosen: int | None = None
        if not MARK.search(value):
            for at, patterns in enumerate(node.patterns):
                texts = [self._expander.text(one) for one in patterns]
                if any(one in ("*", value) for one in texts):
                    chosen = at
                    break
        for at, (_, body) in enumerate(node.branches):
            if at == chosen:
                self._nodes(body)
            elif chosen is None and MARK.search(value):
                for one in body:
                    self._untaken(one, hosts=False)
        for at, (_, body) in enumerate(node.branches):
            for one in body:
                if at != chosen:
                    self._all(one, NOT_NEEDED, f"line {node.line} decides otherwise")
        self._say(node, NOT_NEEDED, "it is decided as the script stands")

    def _for(self, node: ShellBlock) -> None:
        body = node.branches[0][1]
        if self._is_about_hosts(node):
            return
        name, values = self._loop_values(node)
        if values is None:
            for one in body:
                if _has_program(one):
                    self._nodes([one])
                else:
                    self._untaken(one, hosts=False)
            self._say(node, LEFT, "what it loops over, only a job can tell", "use `sweep`")
            return
        outer = self._loops
        self._loops = (*outer, node.line)
        before = len(self.result.programs)
        if any(map(_has_program, body)):
            for one in _leaving(body, ("break", "continue", "exit")):
                what = "it may leave out steps of the loop, which are all in the spec"
                self._say(one, LEFT, what, "leave them out of the sweep")
        for value in values:
            self._reads = set()
            self.result.variables[name] = value
            self.result.assigned[name] = AssignedName(node, frozenset())
            self._nodes(body)
        self._loops = outer
        if len(self.result.programs) > before:
            self._say(node, "", "a loop")
        else:
            self._say(node, NOT_NEEDED, "nothing in it is a program of the run")

    def _loop_values(self, node: ShellBlock) -> tuple[str, list[str] | None]:
        header = node.header
        if header and (found := _COUNTER.fullmatch(" ".join(header))):
            last = self._expander.number(found[4])
            if last is not None and last - int(found[2]) < 1_000:
                return found[1], [*map(str, range(int(found[2]), last + (found[3] == "<=")))]
            return found[1], None
        if len(header) < 2 or header[1] != "in":
            return header[0] if header else "", None
        values = [word for one in header[2:] for word in self._expander.words(one)]
        return header[0], None if any(map(MARK.search, values)) else values

    def _while(self, node: ShellBlock) -> None:
        condition, body = node.branches[0]
        if self._is_about_hosts(node):
            return
        names = set(_assigned([*condition, *body]))
        before = len(self.result.programs)
        if any(map(_has_program, (*condition, *body))):
            self._forget(sorted(names), node)
        for one in (*condition, *body):
            if _has_program(one):
                self._nodes([one])
            else:
                self._untaken(one, hosts=False)
        found = self.result.programs[before:]
        is_retry = (
            any(map(_has_program, condition))
            or any(True for _ in _leaving(body, ("break",)))
            or [one.words for one in condition if isinstance(one, ShellCommand)] in _EVER
        )
        if found and (not is_retry or any(one.reads & names for one in found)):
            what = "its steps are not followed: its program is in the spec once"
            self._say(node, LEFT, what, "use `sweep`")
            return
        self._say(node, NOT_NEEDED, "hpcrun starts a run again by itself (recovery)")

    def _is_about_hosts(self, node: ShellBlock) -> bool:
        """Check whether a loop makes a list of hosts; note that it is not needed."""
        text = "\n".join(self._source[node.line - 1 : node.last])
        if not HOSTS.search(text) or any(map(_has_program, node.branches[0][1])):
            return False
        why = "hpcrun starts the ranks of all nodes: there is no list of hosts to make"
        self._all(node, NOT_NEEDED, why)
        return True


_EVER = ([["true"]], [[":"]], [["((1))"]], [["((", "1", "))"]], [["[", "1", "]"]])
_STARTS = re.compile(
    r"^(?:srun|torchrun|deepspeed|accelerate|mpirun|mpiexec|python[0-9.]*|composer|singularity"
    r"|apptainer)$"
)


def _assigned(nodes: Sequence[ShellNode]) -> Iterator[str]:
    """Yield the names that a script assigns anywhere."""
    for node in nodes:
        if isinstance(node, ShellBlock):
            for condition, body in node.branches:
                yield from _assigned([*condition, *body])
            continue
        for at, word in enumerate(node.words):
            if found := ASSIGNMENT.fullmatch(word):
                yield found[1]
            elif word.startswith("((") and (found := CHANGE.search(word)):
                yield found[1] or found[2]
            elif at and node.words[0] == "read" and re.fullmatch(r"[A-Za-z_]\w*", word):
                yield word


def _leaving(nodes: Sequence[ShellNode], names: Sequence[str]) -> Iterator[ShellCommand]:
    """Yield the commands that leave a loop, but as its program failed."""
    for at, node in enumerate(nodes):
        if isinstance(node, ShellBlock):
            for condition, body in node.branches:
                yield from _leaving([*condition, *body], names)
        elif node.words[:1] and node.words[0] in names:
            failed = node.joined == "||" and at > 0 and _has_program(nodes[at - 1])
            if not failed:
                yield node


def _is_environment(node: ShellNode) -> bool:
    """Check whether a node is a command that only changes the environment."""
    names = ("source", ".", "module", "ml", "conda", "ulimit")
    return isinstance(node, ShellCommand) and bool(node.words) and node.words[0] in names


def _has_program(node: ShellNode) -> bool:
    """Check whether a node starts what may be the run's program."""
    if isinstance(node, ShellBlock):
        return any(_has_program(one) for part in node.branches for one in (*part[0], *part[1]))
    words = [one for one in node.words if one != "!" and not ASSIGNMENT.fullmatch(one)]
    if words[:1] == ["env"]:
        words = [one for one in words[1:] if not one.startswith("-")]
    if not words or not _STARTS.match(PurePath(words[0]).name):
        return False
    return "-c" not in words[1:3] or words[0] == "srun"


def _looked_for(condition: Sequence[ShellNode]) -> str | None:
    """Return the path whose existence a condition asks for, as it is written."""
    if len(condition) != 1 or not isinstance(condition[0], ShellCommand):
        return None
    words = " ".join(condition[0].words)
    found = re.search(r"(?:^|\s)-[edfs]\s+(\"[^\"]*\"|\S+)", words)
    return found[1] if found and "!" not in words else None

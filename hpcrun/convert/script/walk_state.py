"""The state of a walk through a script: what was found so far, and the values of its words."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath

from hpcrun.convert.line_fates import CARRIED, LEFT, LineFate, quoted
from hpcrun.convert.script.launch_line import ProgramLaunch
from hpcrun.convert.shell.shell_syntax import ShellBlock, ShellCommand, ShellNode, parse
from hpcrun.convert.shell.shell_tokens import MOST_WORDS, ShellSyntaxError
from hpcrun.convert.shell.shell_values import MARK, Expander, Unknown, Unknowns

_RANKS = ("SLURM_PROCID", "SLURM_NODEID", "SLURM_LOCALID", "RANK", "LOCAL_RANK", "NODE_RANK")
_JOB = ("SLURM_JOB_ID", "SLURM_JOBID", "SLURM_ARRAY_JOB_ID", "SLURM_STEP_ID")
_NODES = ("SLURM_JOB_NODELIST", "SLURM_NODELIST", "SLURMD_NODENAME", "HOSTNAME", "MASTER_ADDR")


@dataclass
class StartedProgram:
    """A program that the script starts, and where."""

    launch: ProgramLaunch
    node: ShellCommand
    directory: str
    """The working directory, relative to that of the script unless absolute."""
    reads: frozenset[str]
    loops: tuple[int, ...] = ()
    """The blocks of loops that it is in, by their lines."""


@dataclass
class AssignedName:
    """Where a variable got its last value."""

    node: ShellNode
    reads: frozenset[str]


@dataclass(frozen=True)
class WrittenDocument:
    """A file that a here-document writes."""

    text: str
    node: ShellCommand
    reads: frozenset[str]
    """The variables that it is made of."""


@dataclass
class WalkResult:
    """What a walk found."""

    unknowns: Unknowns
    variables: dict[str, str | list[str]] = field(default_factory=dict)
    assigned: dict[str, AssignedName] = field(default_factory=dict)
    earlier: list[tuple[str, AssignedName]] = field(default_factory=list)
    """Assignments whose value was replaced by a later one."""
    exported: dict[str, ShellNode] = field(default_factory=dict)
    setup: list[tuple[str, ShellNode]] = field(default_factory=list)
    programs: list[StartedProgram] = field(default_factory=list)
    documents: dict[str, WrittenDocument] = field(default_factory=dict)
    """By the file that is written."""
    fates: dict[int, tuple[ShellNode, LineFate]] = field(default_factory=dict)
    """What became of each command, by its id."""
    assumed: dict[str, int] = field(default_factory=dict)
    """Variables that are taken for unset in a condition -> its line."""
    resume_reads: set[str] = field(default_factory=set)
    resumes: list[tuple[str, str, str]] = field(default_factory=list)
    """A path that is looked for, a variable, and the arguments that it then holds."""
    decides: set[str] = field(default_factory=set)
    """Variables that conditions were decided by."""
    stop_signal: str | None = None
    steps: int = 0
    """The commands that were walked through."""
    python: str | None = None
    """The Python of a virtual environment that is activated."""


class WalkState:
    """The values of a script's words, and what was found of it so far.

    Parameters
    ----------
    source
        The lines of the script.
    facts
        What Slurm's variables are in the job, by their names.
    """

    def __init__(self, source: Sequence[str], facts: Mapping[str, str]) -> None:
        self._source, self._facts = source, facts
        self.result = WalkResult(Unknowns())
        self._expander = Expander(self._look, self._output, self._unset, self.result.unknowns)
        self._functions: dict[str, ShellBlock] = {}
        self._names: set[str] = set()
        self._called: set[str] = set()
        self._handlers: set[str] = set()
        self._reads: set[str] = set()
        self._arguments: list[str] | None = None
        self._directory: list[str] = ["."]
        self._previous = "."
        self._loops: tuple[int, ...] = ()
        self._steps = 0
        self._calls = 0
        self._in_condition = False
        self._is_inner = False
        self._left_inside: list[str] = []
        self._named: dict[str, set[int]] = {}
        self._quoted: dict[tuple[int, int], str] = {}

    def _look(self, name: str) -> str | list[str] | None:
        self._reads.add(name)
        if name in ("@", "*"):
            return self._arguments
        if name.isdigit() and self._arguments is not None:
            at = int(name) - 1
            return self._arguments[at] if 0 <= at < len(self._arguments) else ""
        if name in self.result.variables:
            return self.result.variables[name]
        if name == "PWD":
            return self._directory[-1]
        return self._facts.get(name)

    def _unset(self, name: str, shown: str, default: str | None) -> str:
        mark = self.result.unknowns.mark
        if name in _RANKS:
            return mark(Unknown("rank", shown, name))
        if name in _JOB:
            return mark(Unknown("job", shown, name))
        if name in _NODES:
            return mark(Unknown("nodes", shown, name))
        if name in ("RANDOM", "SRANDOM"):
            return mark(Unknown("random", shown, name))
        if name in ("TMPDIR", "SLURM_TMPDIR", "LOCAL_SCRATCH"):
            return mark(Unknown("scratch", shown, name))
        if name.isdigit() or name in ("@", "*"):
            kind = "text" if name == "0" else "argument"
            return mark(Unknown(kind, shown, name, default))
        if name in ("#", "?", "$", "!", "-"):
            return mark(Unknown("text", shown, name))
        if name.startswith(("SLURM", "SBATCH")):
            return mark(Unknown("job", shown, name, default))
        if name in self._names:
            # It is set in a branch that is not taken.
            return default or ""
        if self._in_condition and name not in ("HOME", "USER", "SCRATCH", "WORK"):
            self.result.assumed.setdefault(name, 0)
            return default or ""
        return mark(Unknown("environment", shown, name, default))

    def _output(self, text: str) -> str:
        """Return the output of a command substitution, where it needs no job."""
        shown = f"$({text})"
        words = self._plain_words(text)
        mark = self.result.unknowns.mark
        if words == ["pwd"]:
            return self._directory[-1]
        if words and words[0] == "echo" and len(words) > 1 and "|" not in text:
            return " ".join(words[1:])
        if (numbers := _sequence(words)) is not None:
            if len(numbers) > MOST_WORDS:
                raise ShellSyntaxError(f"seq gives more than {MOST_WORDS:,} numbers", 0)
            self._steps += len(numbers) // 50
            return " ".join(map(str, numbers))
        if words and words[0] == "expr" and "|" not in text:
            number = self._expander.number(" ".join(words[1:]).replace("\\", ""))
            if number is not None:
                return str(number)
        if words and words[0] in ("realpath", "readlink") and "|" not in text:
            path = words[-1]
            is_here = path.startswith(("/", "${")) or MARK.match(path) or self._directory[-1] == "."
            return path if is_here else f"{self._directory[-1]}/{path}"
        if words and words[0] == "basename" and len(words) == 2 and not MARK.search(words[1]):
            return PurePath(words[1]).name
        if words and words[0] == "dirname" and len(words) == 2 and not MARK.search(words[1]):
            return str(PurePath(words[1]).parent)
        if words and words[0] in ("whoami", "id"):
            return mark(Unknown("environment", shown, "USER"))
        if re.search(r"scontrol|hostname|SLURM_(JOB_)?NODELIST", text):
            return mark(Unknown("nodes", shown))
        if re.match(r"\s*date\b", text):
            return mark(Unknown("date", shown))
        if re.search(r"shuf|RANDOM|uuidgen|free_port|socket", text):
            return mark(Unknown("random", shown))
        # What it is made of tells what it is.
        kinds = self.result.unknowns.of(" ".join(words))
        return mark(Unknown(kinds[0].kind if kinds else "output", shown))

    def _forget(self, names: Sequence[str], node: ShellNode) -> None:
        """Note that only a job tells the values of names from here on."""
        for name in names:
            shown = Unknown("output", f"${name}", name)
            self.result.variables[name] = self.result.unknowns.mark(shown)
            self.result.assigned[name] = AssignedName(node, frozenset())

    def _plain_words(self, text: str) -> list[str]:
        parsed = parse(text)
        if len(parsed.nodes) != 1 or not isinstance(parsed.nodes[0], ShellCommand):
            return []
        return [word for raw in parsed.nodes[0].words for word in self._expander.words(raw)]

    def _say(self, node: ShellNode, fate: str, what: str, hint: str | None = None) -> None:
        """Note what became of a node, unless that was noted before; carried over wins."""
        if self._is_inner and fate == LEFT:
            if isinstance(node, ShellBlock):
                self._left_inside.append(f"{node.kind} …")
            elif node.words and "=" in node.words[-1]:
                self._left_inside.append(" ".join(node.words))
        if self._is_inner or (
            id(node) in self.result.fates
            and (fate != CARRIED or self.result.fates[id(node)][1].fate == CARRIED)
        ):
            return
        place = (node.line, node.last)
        text = self._quoted.get(place) or quoted("\n".join(self._source[node.line - 1 : node.last]))
        self._quoted[place] = text
        made = LineFate(node.line, node.last, text, fate, what, hint)
        self.result.fates[id(node)] = (node, made)

    def _all(self, node: ShellNode, fate: str, what: str, hint: str | None = None) -> None:
        """Note the same of a node and of all in it that has no fate yet."""
        self._say(node, fate, what, hint)
        if isinstance(node, ShellBlock):
            for condition, body in node.branches:
                for one in (*condition, *body):
                    self._all(one, fate, what, hint)


def _sequence(words: Sequence[str]) -> range | None:
    """Return the numbers that ``seq`` gives; None where it is not plain."""
    if words[:1] != ["seq"] or not 2 <= len(words) <= 4:
        return None
    if not all(re.fullmatch(r"[0-9]{1,9}", one) for one in words[1:]):
        return None
    first, step, last = {
        2: (1, 1, int(words[-1])),
        3: (int(words[1]), 1, int(words[-1])),
        4: (int(words[1]), int(words[-2]), int(words[-1])),
    }[len(words)]
    return range(first, last + 1, step) if step else None


def shell_word(word: str) -> str:
    """Quote a word so that its unknown parts are still expanded."""
    if re.fullmatch(r"[\w./:@%+,=~\ue000\ue001*?\[\]-]+", word):
        return word
    return '"' + re.sub(r'([\\"`$])', r"\\\1", word) + '"'

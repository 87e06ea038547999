"""What becomes of each line of a script: carried over, not needed, or left to the user."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any

from hpcrun.policy import secret_names
from hpcrun.text import one_line

CARRIED, NOT_NEEDED, LEFT = "carried over", "not needed", "could not be carried over"
_MOST_SHOWN = 160
_SECRET_WORD = re.compile(
    r"((?:login|--token|--api[-_]key|--password|-p)[ =]+)(?!\$)(\S+)", re.IGNORECASE
)
_ASSIGNED = re.compile(r"(?<![\w$])([A-Za-z_]\w*)=(?!\$)('[^']*'|\"[^\"$]*\"|[^\s;&'\"]+)")


@dataclass(frozen=True)
class LineFate:
    """What became of a command of the script, or of one of its #SBATCH lines."""

    line: int
    last: int
    text: str
    """The line as it is written, shortened, without the values of secrets."""
    fate: str
    """``carried over``, ``not needed`` or ``could not be carried over``."""
    what: str
    """The key of the spec that took it, the reason why it is not needed, or what is in the way."""
    hint: str | None = None
    """What to do about it."""

    def visible(self) -> LineFate:
        """Return it with everything that acts on a terminal shown."""
        hint = one_line(self.hint) if self.hint else self.hint
        return replace(self, text=one_line(self.text), what=one_line(self.what), hint=hint)

    def to_data(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {
            **{"line": self.line, "last": self.last, "text": self.text, "fate": self.fate},
            **{"what": self.what, "hint": self.hint},
        }

    @property
    def place(self) -> str:
        """Return ``line 3`` or ``lines 3-7``."""
        return f"line {self.line}" if self.line == self.last else f"lines {self.line}-{self.last}"

    def __str__(self) -> str:
        hint = f"; {self.hint}" if self.hint else ""
        return f"{self.place}: {self.text}: {self.what}{hint}"


def carried(fate: LineFate, what: str) -> LineFate:
    """Return the fate of the same line, carried over to a key."""
    return LineFate(fate.line, fate.last, fate.text, CARRIED, what)


def quoted(text: str) -> str:
    """Return lines of a script as a note shows them: in one line, and without secrets."""

    def hide(found: re.Match[str]) -> str:
        return f"{found[1]}=…" if secret_names.is_name(found[1]) else found[0]

    joined = " ".join(text.replace("\\\n", " ").split())
    masked = _ASSIGNED.sub(hide, joined)
    if any(True for _ in secret_names.places(masked.split(" "), "line")):
        masked = f"{masked.split(' ')[0]} …"
    masked = _SECRET_WORD.sub(r"\1…", masked) if re.search(r"\blogin\b", masked) else masked
    shown = one_line(masked)
    return shown if len(shown) <= _MOST_SHOWN else f"{shown[: _MOST_SHOWN - 1]}…"


_PRINTS = frozenset(
    {
        *("echo", "printf", "date", "hostname", "pwd", "which", "type", "whoami", "id", "uname"),
        *("env", "printenv", "lscpu", "free", "df", "du", "ls", "cat", "head", "tail", "nvcc"),
        *("nvidia-smi", "rocm-smi", "ds_report", "seff", "sacct", "squeue", "sinfo", "sstat"),
        *("nproc", "lspci", "ibstat", "ibv_devinfo", "ifconfig", "ip", "uptime", "tree", "gcc"),
        *("clear", "jobs", "ulimit-a", "tee", "grep", "sed", "awk", "sort", "uniq", "wc", "cut"),
        *("numastat", "locale", "tput", "hwloc-ls", "lstopo", "dcgmi", "journalctl", "ps"),
    }
)
_NOTHING = {
    **dict.fromkeys(("true", ":", "sleep", "sync", "times"), "it does nothing for the run"),
    **dict.fromkeys(("wait", "exit", "return", "break", "continue", "disown"), "hpcrun waits"),
    **dict.fromkeys(("set", "shopt", "setopt"), "it is about this script's own shell"),
    "shift": "the script's own arguments are key=value of `hpcrun submit`",
    "getopts": "the script's own arguments are key=value of `hpcrun submit`",
    "local": "it is about this script's own shell",
    "read": "it is about this script's own shell",
}
_ENDS = frozenset({"kill", "pkill", "killall", "scancel", "skill"})
_FILES = frozenset(
    {
        *(
            "rm",
            "cp",
            "mv",
            "ln",
            "rsync",
            "tar",
            "unzip",
            "gunzip",
            "wget",
            "curl",
            "git",
            "touch",
        ),
        *("chmod", "chown", "mkdir", "rmdir", "scp", "dd", "zip", "gzip", "sbcast", "lfs", "pip"),
        *("pip3", "aws", "gsutil", "azcopy", "squashfuse", "mount", "huggingface-cli", "wandb"),
        *("find", "xargs", "split", "truncate", "mktemp", "pdcp", "hf", "gcloud", "kaggle"),
    }
)
_ENVIRONMENT = frozenset({"module", "ml", "spack", "ulimit", "umask", "lmod", "use", "unset"})


def of_command(words: Sequence[str], hosts: bool) -> tuple[str, str, str | None] | None:
    """Return the fate of a command that starts no training; None for all others.

    Parameters
    ----------
    words
        The command, expanded.
    hosts
        It reads or writes a list of hosts.
    """
    first = PurePath(words[0]).name or words[0]
    rest = " ".join(words[1:])
    if hosts:
        return NOT_NEEDED, "hpcrun starts the ranks of all nodes: there is no hostfile", None
    if first == "scontrol":
        return _scontrol(words)
    if first == "sbatch":
        why = "hpcrun submits no job from a job; it requeues its own by itself (recovery)"
        if "$0" in rest or "BASH_SOURCE" in rest or not rest:
            return NOT_NEEDED, why, None
        return LEFT, why, "what follows is a spec of its own, with `depends_on: [{spec: THIS}]`"
    if first in _ENDS:
        return NOT_NEEDED, "hpcrun ends the processes of a run", None
    if first == "trap":
        return NOT_NEEDED, "hpcrun hears the signals, saves and requeues (recovery)", None
    if first == "env" and any("=" not in one and one[:1] != "-" for one in words[1:]):
        return None
    if first == "command" and words[1:2] in (["-v"], ["-V"]):
        return NOT_NEEDED, _printed(first), None
    if first in _PRINTS and _changes(first, words[1:]):
        what, hint = "it makes or changes a file", "do it before `hpcrun submit`"
        return LEFT, what, hint
    if first in _PRINTS:
        return NOT_NEEDED, _printed(first), None
    if first in _NOTHING:
        return NOT_NEEDED, _NOTHING[first], None
    if first in _FILES:
        what = "hpcrun runs nothing before the program but environment.setup, which `submit` runs "
        hint = "do it before `hpcrun submit`, or in the program"
        if first in ("mkdir", "rm", "rmdir", "touch"):
            what = "hpcrun makes and keeps the directories of runs: a relative path that the "
            what += "program writes is in the run's own"
            return LEFT, what, "make other directories before `hpcrun submit`"
        if first in ("pip", "pip3"):
            return LEFT, "packages are installed once, not by each job", hint
        return LEFT, what + "where it is typed too", hint
    if first in ("ray", "dask", "dask-worker", "jupyter", "tensorboard", "ssh", "pdsh", "mongod"):
        return LEFT, f"{first} is a service of its own", "start it inside the program"
    return None


def _changes(first: str, words: Sequence[str]) -> bool:
    """Check whether a command that prints otherwise makes or changes a file."""
    if first in ("gcc", "nvcc"):
        return any(one not in ("--version", "-V", "-v") for one in words)
    if first == "tee":
        return any(one[:1] != "-" and not is_log(one, False) for one in words)
    flags = r"-[nErsz]*i.*|--in-place.*"
    return first == "sed" and any(re.fullmatch(flags, one, re.DOTALL) for one in words)


def is_log(path: str, is_named: bool) -> bool:
    """Check whether a file is a log; ``is_named``: another line of the script names it."""
    if re.search(r"\.(?:log|out|err)\b|/dev/|^[&\d-]", path, re.IGNORECASE):
        return True
    return not is_named and bool(re.search(r"\.(?:txt|csv)\b|log", path, re.IGNORECASE))


def is_environment(words: Sequence[str]) -> bool:
    """Check whether a command only changes the environment of what follows."""
    return PurePath(words[0]).name in _ENVIRONMENT


def _scontrol(words: Sequence[str]) -> tuple[str, str, str | None]:
    if "requeue" in words or "requeuehold" in words:
        return NOT_NEEDED, "hpcrun requeues by itself (recovery.requeue)", None
    if "update" in words:
        what = "hpcrun changes no job"
        return LEFT, what, "say what the job needs in resources"
    return NOT_NEEDED, "`hpcrun status` and `hpcrun show` tell of jobs", None


def _printed(first: str) -> str:
    if first in ("nvidia-smi", "rocm-smi", "dcgmi", "free", "uptime"):
        return "it prints; telemetry samples each node"
    return "it prints; `hpcrun logs`, `show` and `status` tell that"

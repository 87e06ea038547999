"""Errors of a program that no new start mends, told from what its first failing rank left.

Pure, of lines that anybody may have written. In doubt an error is not permanent: a start too many
costs less than a run that stops for the fault of a node.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpcrun.errors import EXIT_SAVED
from hpcrun.policy import causes

# So many lines at a log's end are looked at.
LINES = 200
# Characters of a message that are.
_LONGEST = 10_000

_NOT_FOUND = 127
_NOT_EXECUTABLE = 126

# Trouble of a node, its storage or its network, which another node or another time may not have.
_TROUBLE = re.compile(
    r"Input/output error|Stale (?:NFS )?file handle|Remote I/O error|Transport endpoint"
    r"|[Cc]onnection (?:timed out|refused|reset)|Network is |Host is |No route to host"
    r"|No space left|[Qq]uota exceeded|Read-only file system|Structure needs cleaning"
    r"|Cannot allocate memory|Resource temporarily unavailable|Too many open files|Bus error"
    r"|Killed signal|[Oo]ut of memory"
)
_INSTALLED = re.compile(r"[/\\](?:site|dist)-packages[/\\]|[/\\]lib[/\\]python\d")
_FILE = re.compile(r'^\s*File "([^"]+)", line \d+', re.MULTILINE)
_MISSING_FILE = re.compile(r"\[Errno (?:2|20|21)\] [^:]*: '(.+)'$")
_NO_MODULE = re.compile(r"No module named '(\w+)")
_CANNOT_START = re.compile(
    r"the command .+ cannot be started: "
    r"(?:No such file or directory|Permission denied|Exec format error|Not a directory)"
)
_COMPILER = re.compile(
    r"Error building extension '\w+'|Ninja is required to load C\+\+ extensions"
    r"|CUDA_HOME does not exist|MissingCUDAException|Unable to JIT load the \w+ op"
)
# In a log whose end is the compiler's output, or that of ninja.
_RAISED_IN = re.compile(rf"(?<=Error: )(?:{_COMPILER.pattern})")
_NO_COMMAND = re.compile(
    r"command not found|: not found$|No such file or directory|error while loading shared librar"
)
_NO_PERMISSION = re.compile(r"Permission denied|[Cc]annot execute|Is a directory|Exec format")
_USAGE_HEAD = re.compile(r"^\s*usage: ", re.IGNORECASE)
# Of argparse and of click.
_USAGE_ERROR = re.compile(
    r"^\S.*: error: "
    r"|^Error: (?:No such (?:option|command)|Got unexpected|Missing |Invalid value|Option )"
)
_NO_SCRIPT = re.compile(r": can't open file '.*': \[Errno 2\]")
# Python's own line of `-m`, without a traceback.
_NO_MAIN_MODULE = re.compile(
    r"^\S*python[\d.]*: (?:No module named |Error while finding module specification for )"
)
_SHELL_SYNTAX = re.compile(r": line \d+: syntax error")
_SYNTAX = ("SyntaxError", "IndentationError", "TabError")


@dataclass(frozen=True)
class PermanentError:
    """An error that comes again at each start."""

    reason: str
    """What is wrong, as a clause: it follows "because"."""
    anywhere: bool = False
    """It lies in the frozen code or the arguments; else a node may be at fault."""
    of_rank_0: bool = False
    """It counts only if rank 0 has it: other ranks may look for what that one is to write."""


def find(
    failure: Mapping[str, Any], lines: Sequence[str], named: Collection[str] = ()
) -> PermanentError | None:
    """Return the permanent error that ended a rank before its first step; None for others.

    ``lines`` are the last ones of its log, at most `LINES`; of missing files only those that the
    program's arguments have ``named`` count.
    """
    code, exception = failure.get("exit_code"), failure.get("exception")
    if failure.get("signal") or not code or code == EXIT_SAVED:
        return None
    message = " ".join(str(failure.get("message") or "")[:_LONGEST].split())
    text = "\n".join(lines)
    if _TROUBLE.search(message) or _TROUBLE.search(text):
        return None
    if exception:
        trace = str(failure.get("traceback") or text)
        found = _of_exception(str(exception), message, trace, named)
        if found is not None:
            return found
    if compiling := _COMPILER.search(message) or (not exception and _RAISED_IN.search(text)):
        return PermanentError(f"an extension cannot be compiled ({compiling[0]})")
    return None if exception else _of_exit_code(int(code), lines)


def missing_module(failure: Mapping[str, Any]) -> str | None:
    """Return the top-level name of the module that a rank did not find; None for other errors."""
    found = _NO_MODULE.match(str(failure.get("message") or "")[:_LONGEST])
    return found[1] if found and failure.get("exception") == "ModuleNotFoundError" else None


def _of_exception(
    name: str, message: str, trace: str, named: Collection[str]
) -> PermanentError | None:
    if name == "ModuleNotFoundError":
        return PermanentError(f"a module is missing ({message})")
    if name == "ImportError":
        return PermanentError(f"an import fails ({message})")
    if name in _SYNTAX:
        return PermanentError(f"the code has a {name} ({message})", not _is_installed(trace))
    if name == "NameError":
        return PermanentError(f"the code has a {name} ({message})", anywhere=True)
    if name == "DeepSpeedConfigError" or "Check batch related parameters" in message:
        return PermanentError(f"DeepSpeed refuses its configuration ({message})", anywhere=True)
    if name == "ValidationError" and " for DeepSpeed" in message:
        return PermanentError(f"DeepSpeed refuses its configuration ({message})", anywhere=True)
    if name == "ValueError" and "not used by the HfArgumentParser" in message:
        return PermanentError(f"the program refuses its arguments ({message})", anywhere=True)
    if name == "UsageError":  # the session's, of a configuration or a call; click's, of arguments
        return PermanentError(f"its input is refused ({message})", anywhere=True)
    if name == "HpcrunError" and (found := _CANNOT_START.match(message)):
        return PermanentError(found[0])
    if name in ("FileNotFoundError", "NotADirectoryError", "IsADirectoryError"):
        found = _MISSING_FILE.search(message)
        if found is not None and any(_names(argument, found[1]) for argument in named):
            reason = f"a file that its arguments name is missing ({found[1]})"
            return PermanentError(reason, of_rank_0=True)
    return None


def _names(argument: str, path: str) -> bool:
    """Check whether an argument is this path, or an option with it."""
    return argument == path or argument.partition("=")[2] == path


def _is_installed(trace: str) -> bool:
    """Check whether the last file of a traceback belongs to an installed package."""
    files = _FILE.findall(trace)
    return bool(files) and _INSTALLED.search(files[-1]) is not None


def _of_exit_code(code: int, lines: Sequence[str]) -> PermanentError | None:
    if code == _NOT_FOUND and (line := _last(_NO_COMMAND, lines)):
        return PermanentError(f"a command is not found ({line})")
    if code == _NOT_EXECUTABLE and (line := _last(_NO_PERMISSION, lines)):
        return PermanentError(f"a command cannot be executed ({line})")
    if code == causes.USAGE and (line := _last(_NO_SCRIPT, lines)):
        return PermanentError(f"its script is missing ({line})")
    if code == causes.USAGE and (line := _last(_SHELL_SYNTAX, lines)):
        return PermanentError(f"the script has a syntax error ({line})", anywhere=True)
    if code == 1 and lines and _NO_MAIN_MODULE.match(lines[-1]):
        return PermanentError(f"a module is missing ({' '.join(lines[-1].split())})")
    if any(map(_USAGE_HEAD.match, lines)) and (line := _last(_USAGE_ERROR, lines)):
        at_fault = "[Errno" not in line
        return PermanentError(f"the program refuses its arguments ({line})", anywhere=at_fault)
    return None


def _last(pattern: re.Pattern[str], lines: Sequence[str]) -> str | None:
    found = (line for line in reversed(lines) if pattern.search(line))
    return " ".join(next(found, "").split()) or None

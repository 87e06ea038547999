"""What a program misses in the job that it had where it was submitted: a variable, or a file.

The names of the shell's variables and of what was left out of the frozen code were recorded then.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from hpcrun.host import is_there
from hpcrun.policy import secret_names
from hpcrun.state.node_layout import PREFIX
from hpcrun.state.plan import Plan
from hpcrun.submission.code import unfrozen
from hpcrun.text import one_line

# The last lines of a log that are looked at, beside an exception and without; their characters.
_AFTER_EXCEPTION, _ALONE, _LONGEST = 5, 30, 2_000
_OF_ENVIRON = re.compile(r"(?:<frozen os>|/os\.py)\"?, line \d+, in __getitem__")
_KEY_ERROR = re.compile(r"\bKeyError: '([A-Za-z_]\w*)'")
# Of bash, dash and zsh (`set -u`, ``${X:?}``) and of csh.
_OF_SHELL = re.compile(
    r"\b([A-Za-z_]\w*): (?:unbound variable|parameter (?:null or )?not set|Undefined variable)"
)
_OF_SHELL_TOO = re.compile(r": (?:line )?\d+: ([A-Za-z_]\w*): ")
# Of libraries and of programs that look themselves.
_NOT_SET = re.compile(
    r"\b(?:not (?:set|found|defined|given|provided)|isn't set|unset|undefined|missing"
    r"|must (?:be|set)|needs? to be|required|set the|please set)\b",
    re.IGNORECASE,
)
_NAME = re.compile(r"\b[A-Z][A-Z0-9_]{2,}\b")
_MISSING = re.compile(
    r"no such file|not found|not exist|n't exist|incorrect path|no .*\bfound\b|filenotfound"
    r"|(?:could not|couldn't|cannot|can't|unable to|failed to) (?:find|open|load|access|read)"
    r"|not a (?:local folder|valid|file|directory)",
    re.IGNORECASE,
)
_PATH = re.compile(r"'([^'\n]+)'|\"([^\"\n]+)\"|([\w.+-]*[/.][\w./+-]*\w)")
_IN_COPY = re.compile(rf".*/{PREFIX}[0-9a-f]{{12}}[^/]*/attempt-\d+/code/(.+)", re.DOTALL)
_RANK = re.compile(r"rank-\d{5,}/")


def explanation(
    cause: Mapping[str, Any], facts: Mapping[str, Any], plan: Plan, work: Path
) -> str | None:
    """Return what the job lacks and the line to write, as a sentence without its period.

    ``cause`` is of a rank that ended badly, as the ledger has it; ``facts`` are the content of
    ``submission.json``, and ``plan`` is the plan of that submission.
    """
    said = f"{cause.get('exception') or ''}: {cause.get('message') or ''}"
    tail = [str(line)[:_LONGEST] for line in reversed(cause.get("log_tail") or ())]
    lines = [said[:_LONGEST], *tail[: _AFTER_EXCEPTION if cause.get("exception") else _ALONE]]
    shell = facts.get("variables")
    is_environ = any(map(_OF_ENVIRON.search, tail))
    if name := _variable(lines, shell, {*plan.runs[0].environment.variables}, is_environ):
        return _of_variable(name, shell)
    left_out = (facts.get("code") or {}).get("left_out") or ()
    for path in _missing_paths(lines):
        if told := _of_path(path, left_out, plan, work):
            return told
    return None


def _variable(
    lines: list[str], shell: Collection[str] | None, given: Collection[str], is_environ: bool
) -> str | None:
    """Return the variable for whose lack a program ended; None where that is not sure.

    ``is_environ``: a traceback ends in ``os.environ[…]``.
    """
    known = set(shell or ()) - set(given)
    for line in lines:
        if (found := _KEY_ERROR.search(line)) and (
            is_environ or (found[1] in known and found[1].isupper())
        ):
            return found[1]
        if found := _OF_SHELL.search(line):
            return found[1]
        if (found := _OF_SHELL_TOO.search(line)) and found[1] in known and found[1].isupper():
            return found[1]
        if _NOT_SET.search(line):
            for name in _NAME.findall(line):
                if name in known:
                    return str(name)
    return None


def _of_variable(name: str, shell: Collection[str] | None) -> str:
    had = f"The job has no variable {name}: it does not get those of the shell that submitted it"
    if shell is not None:
        had = f"{name} was set in the shell that submitted; the job has only what the spec gives"
        if name not in shell:
            had = f"The job has no variable {name}, nor had the shell that submitted it"
    if secret_names.is_name(name):
        return f"{had}: put it into a file of mode 0600 that environment.secrets_file names"
    value = f"'${{oc.env:{name}}}'" if shell is not None and name in shell else "…"
    return f"{had}: write `environment: {{variables: {{{name}: {value}}}}}` in the spec"


def _missing_paths(lines: list[str]) -> Iterator[str]:
    for line in lines:
        if _MISSING.search(line):
            yield from ("".join(found).rstrip("/") for found in _PATH.findall(line))


def _of_path(path: str, left_out: Collection[str], plan: Plan, work: Path) -> str | None:
    """Return what to do about a path that is missing; None if it was not left out."""
    inside = _inside(path, plan, work)
    if inside is None:
        return None
    place = plan.place(path) if inside.startswith("..") else Path(plan.code_root, inside)
    if inside.startswith(".."):
        if not is_there(place.exists):
            return None
        where = one_line(os.path.normpath(place))
        return f"{one_line(path)} lies outside the code, and is not there in the job: name {where}"
    upper = next((up for up in unfrozen.around(inside) if up in left_out), None)
    below = [name for name in left_out if name.startswith(f"{inside}/")]
    if upper is None and not below:
        beside = plan.place(path)
        if not is_there(beside.exists) or is_there(place.exists) or path.startswith("/"):
            return None
        return (
            f"{one_line(path)} lies beside the spec, which is not in the code, "
            f"{one_line(plan.code_root)}: name {one_line(str(beside))}"
        )
    name = upper or below[0]
    there = f"{one_line(inside)} is in {one_line(plan.code_root)}"
    if not is_there(place.exists):
        there = f"{one_line(name)} was in {one_line(plan.code_root)}"
        return f"{there} and is left out of the frozen code: code.link shows it to the job"
    line = unfrozen.remedy(plan, inside, left_out)
    return f"{there} and is not in the frozen code: write `{one_line(line)}` in the spec"


def _inside(path: str, plan: Plan, work: Path) -> str | None:
    """Return a path of a job relative to the root of the code; None for one elsewhere."""
    if not path or len(path) > _LONGEST or "\0" in path:
        return None
    if not path.startswith("/"):
        return plan.inside(path)
    if found := _IN_COPY.fullmatch(path):
        return os.path.normpath(found[1])
    if path.startswith(f"{work}/"):
        return os.path.normpath(_RANK.sub("", path[len(f"{work}/") :], count=1))
    return None

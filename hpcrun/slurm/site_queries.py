"""Questions about the site: each is one process, however much is asked.

scontrol and sacctmgr take several questions as lines of their input, and print a prompt and the
question, of a long one its end alone, before each answer.
"""

from __future__ import annotations

import re

from hpcrun.slurm import client
from hpcrun.slurm.parse import parse_rows, parse_time

_CONTROLLER = ("config", "partition", "node", "reservation", "licenses")
_ASSOCIATION = "Cluster,Account,Partition,QOS,DefaultQOS,MaxJobs,MaxSubmitJobs,MaxWall,MaxTRES"
_QOS = (
    "Name,MaxWall,MaxTRES,MaxJobsPerUser,MaxSubmitJobsPerUser,MinTRES,GrpTRES,Flags,Preempt,"
    "PreemptMode,GraceTime"
)
_PARENT = "Cluster,Account,ParentName"
_USER = re.compile(r"[\w.@+-]+", re.ASCII)
_START = re.compile(r"to start at (\S+)")
_PROMPT = re.compile(r"(?:scontrol|sacctmgr): ")
# What a user's question is called, among the answers.
USER, ASSOCIATIONS, QOS, PARENTS = "user", "associations", "qos", "parents"
_QUESTIONS = (USER, ASSOCIATIONS, QOS, PARENTS)


def controller() -> dict[str, list[str]]:
    """Return the lines of ``scontrol show``: config, partition, node, reservation and licenses.

    A record is a line of ``Name=value``. Raises `client.CommandFailed` if Slurm does not answer.
    """
    questions = "".join(f"show {what}\n" for what in _CONTROLLER)
    text = client.command(["scontrol", "--oneliner", "--all"], questions=questions)
    found = _answers(text, _CONTROLLER)
    if not found.get("config"):
        raise client.CommandFailed(" ".join(text.split())[:200] or "scontrol printed nothing")
    return found


def accounting(user: str) -> dict[str, list[dict[str, str]]]:
    """Return the rows that slurmdbd has on a user, their associations, every QOS and account.

    Raises `client.CommandFailed` if slurmdbd does not answer.
    """
    if not _USER.fullmatch(user):
        raise client.CommandFailed(f"{user!r} is not the name of a user")
    questions = (
        f"show user where name={user} format=DefaultAccount\n"
        f"show associations where user={user} format={_ASSOCIATION}\n"
        f"show qos format={_QOS}\n"
        f"show associations where user= format={_PARENT}\n"
    )
    argv = ["sacctmgr", "--noheader", "--parsable2"]
    text = client.command(argv, questions=questions, with_messages=True)
    found = _answers(text, _QUESTIONS)
    is_whole = found.keys() >= {*_QUESTIONS} and "not running with a database" not in text.lower()
    # There is always a QOS, and root's account. Where these came, an error is a line of slurm.conf
    # that Slurm leaves out, which each command of it tells.
    if not is_whole or ("error:" in text and not (found[QOS] and found[PARENTS])):
        raise client.CommandFailed(_message(text))
    return {
        USER: [{"DefaultAccount": line} for line in found[USER] if "|" not in line],
        ASSOCIATIONS: _rows(found[ASSOCIATIONS], _ASSOCIATION),
        QOS: _rows(found[QOS], _QOS),
        PARENTS: _rows(found[PARENTS], _PARENT),
    }


def expected_start(script: str) -> str:
    """Return what ``sbatch --test-only`` says of a script; raise `client.CommandFailed` if refused.

    Nothing is submitted.
    """
    return client.command(["sbatch", "--test-only"], questions=script, with_messages=True)


def start_time(said: str) -> float | None:
    """Return when the job of such an answer would start, in seconds since the epoch, if told."""
    match = _START.search(said)
    return parse_time(match[1]) if match else None


def _answers(text: str, questions: tuple[str, ...]) -> dict[str, list[str]]:
    """Return question -> lines of its answer; questions without an answer are left out."""
    answers: list[list[str]] = []
    for line in text.splitlines():
        if _PROMPT.match(line):
            answers.append([])
        elif line.strip() and answers:
            answers[-1].append(line)
    return dict(zip(questions, answers, strict=False))


def _rows(lines: list[str], names: str) -> list[dict[str, str]]:
    return parse_rows("\n".join(lines), names.split(","))


def _message(text: str) -> str:
    """Return the last error, which those of slurm.conf come before."""
    lines = [_PROMPT.sub("", line).strip() for line in text.splitlines()]
    said = [line for line in lines if "error" in line or "database" in line]
    return (said or ["sacctmgr printed nothing of use"])[-1][:200]

"""Words of a script as values of a spec: what only a job knows is what hpcrun fills in."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass, field

from hpcrun.convert.line_fates import quoted
from hpcrun.convert.shell.shell_values import MARK, Unknown, Unknowns

MISSING = "???"
_IN_RANKS = {
    **{"SLURM_PROCID": "RANK", "SLURM_NODEID": "NODE_RANK", "SLURM_LOCALID": "LOCAL_RANK"},
    **{name: name for name in ("RANK", "LOCAL_RANK", "NODE_RANK", "MASTER_ADDR")},
}
_SIMPLE = re.compile(r"[\w./:@+-]*")
_OF_A_JOB = ("job", "date", "random")
_JOB_IDS = ("SLURM_JOB_ID", "SLURM_JOBID", "SLURM_ARRAY_JOB_ID")


@dataclass
class SpecWords:
    """Turns texts with unknown parts into texts of a spec.

    Attributes
    ----------
    lost
        What could not be said in the spec, and what is there instead.
    """

    unknowns: Unknowns
    name: str
    """The experiment's name."""
    lost: list[str] = field(default_factory=list)

    def text(self, word: str, what: str) -> str | None:
        """Return a word as a value of a spec; None where only its ranks know it.

        ``???`` is a value that the user has to give. ``what`` names the word in messages.
        """
        found = self.unknowns.of(word)
        if not found:
            return escaped(word)
        if any(one.kind in ("rank", "nodes") for one in found):
            return None
        if any(one.kind in ("output", "text", "argument") for one in found):
            return self._missing(word, found, what)
        if any(one.kind in _OF_A_JOB for one in found):
            return self._of_job(word, found, what)
        return self._filled(word)

    def _filled(self, word: str) -> str:
        literal = MARK.split(word)
        # Literal texts and the numbers of marks take turns.
        parts = [
            self._one(self.unknowns.found[int(part)]) if at % 2 else escaped(part)
            for at, part in enumerate(literal)
        ]
        return "".join(parts)

    def _one(self, unknown: Unknown) -> str:
        if unknown.kind == "spec":
            return unknown.text
        if unknown.kind == "scratch":
            return "${hpcrun:scratch}"
        if unknown.default is None:
            return f"${{oc.env:{unknown.name}}}"
        default = self._filled(unknown.default)
        if _SIMPLE.fullmatch(default):
            return f"${{oc.env:{unknown.name},{default}}}"
        self.lost.append(
            f"{unknown.text}: taken as if {unknown.name} were not set; write it into the spec"
        )
        return default

    def _missing(self, word: str, found: list[Unknown], what: str) -> str:
        shown = quoted(self.unknowns.shown(word))
        if what == "":
            self.lost.append(f"{shown}: only a job can tell it; it is left out")
            return MISSING
        argument = any(one.kind == "argument" for one in found)
        why = "an argument of the script" if argument else "only a job can tell it"
        self.lost.append(f"{what} is {shown}: {why}; write it into the spec, where ??? stands")
        return MISSING

    def _of_job(self, word: str, found: list[Unknown], what: str) -> str:
        """Put the run's directory, or its name, where the id of a job or the time was."""
        shown = quoted(self.unknowns.shown(word))
        others = [one for one in found if one.kind == "job" and one.name not in _JOB_IDS]
        if others or (any(one.kind == "random" for one in found) and "/" not in word):
            return self._missing(word, found, what)
        if "/" not in word:
            self.lost.append(f"{what} is {shown}: it has the experiment's name instead")
            plain = MARK.sub(self._name_for, word)
            return self._filled(plain)
        last = max(
            match.end()
            for match in MARK.finditer(word)
            if self.unknowns.found[int(match[1])].kind in _OF_A_JOB
        )
        rest = word[last:].partition("/")
        tail = self._filled(rest[1] + rest[2]) if rest[1] else ""
        self.lost.append(f"{what} is {shown}: it is in the run's own directory instead")
        own = "" if tail else "/" + re.sub(r"[^\w.-]+", "-", self._stem(word)).strip("-")
        return "${hpcrun:directory}" + (tail or own.rstrip("/"))

    def _stem(self, word: str) -> str:
        parts = [part for part in MARK.sub("", word).split("/") if part]
        return parts[-1] if parts else ""

    def _name_for(self, found: re.Match[str]) -> str:
        is_job = self.unknowns.found[int(found[1])].kind in _OF_A_JOB
        return self.name if is_job else found[0]

    def in_shell(self, word: str) -> str | None:
        """Return a word for the shell of a rank, which knows RANK and its like; None if none can.

        The words that go there are those that `text` cannot say.
        """
        parts = MARK.split(word)
        shown: list[str] = []
        for at, part in enumerate(parts):
            if at % 2 == 0:
                shown.append(_in_quotes(part))
                continue
            unknown = self.unknowns.found[int(part)]
            inner = self._rank_text(unknown)
            if inner is None:
                return None
            shown.append(inner)
        text = "".join(shown)
        return text if re.fullmatch(r"\$\w+|[\w./:=-]+", text) else f'"{text}"'

    def _rank_text(self, unknown: Unknown) -> str | None:
        if unknown.kind == "nodes":
            return "$MASTER_ADDR"
        if unknown.kind == "rank" and unknown.name in _IN_RANKS:
            return f"${_IN_RANKS[unknown.name]}"
        if unknown.kind == "rank" and unknown.text.startswith("$(("):
            inner = unknown.text
            for slurm, own in _IN_RANKS.items():
                inner = re.sub(rf"\b{slurm}\b", own, inner)
            return inner if "{" not in inner and "(" not in inner[3:-2] else None
        if unknown.kind == "environment":
            # The shell of the submitting user is not there.
            return None
        return None


def _in_quotes(text: str) -> str:
    return re.sub(r'([\\"`$])', r"\\\1", text)


def escaped(text: str) -> str:
    """Return a text in which OmegaConf finds no interpolation."""
    return text.replace("${", "\\${")


def shell_entry(words: list[str], more: list[str]) -> list[str]:
    """Return the entry that starts ``words`` by a shell that knows the rank, with its ``$@``.

    ``more`` are words that are written for that shell already.
    """
    start = " ".join([*map(shlex.quote, words), *more])
    return ["bash", "-c", escaped(f'exec {start} "$@"'), "bash"]


Saying = Callable[[str], None]

"""Promises of hpcrun, and judgements of whether they hold on a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

WORKS, LESS, FAILS, UNKNOWN = "works", "works less", "does not", "not known"
VERDICTS = (FAILS, LESS, UNKNOWN, WORKS)
YOU, ADMINS = "you", "the site's administrators"


@dataclass(frozen=True)
class Judgement:
    """Whether one promise holds, what was found, and what to change."""

    verdict: str
    found: str
    change: str = ""
    """What to change or to type, where something is to be gained."""
    by: str = ""
    """By whom: `YOU` or `ADMINS`."""


@dataclass(frozen=True)
class JudgedPromise:
    """A promise by its short name, and its judgement."""

    name: str
    promise: str
    """What hpcrun promises, in a sentence."""
    judgement: Judgement

    def to_data(self) -> dict[str, Any]:
        """Return its fields as plain data; unknown is null."""
        judged = {name: value or None for name, value in vars(self.judgement).items()}
        return {"name": self.name, "promise": self.promise, **judged}


works = partial(Judgement, WORKS)
less = partial(Judgement, LESS)
fails = partial(Judgement, FAILS)
unknown = partial(Judgement, UNKNOWN)


def counts(judged: Sequence[JudgedPromise]) -> str:
    """Return ``14 work, 3 work less, 1 does not, 2 not known``."""
    words = {WORKS: ("works", "work"), LESS: ("works less", "work less")}
    words |= {FAILS: ("does not", "do not"), UNKNOWN: ("is not known", "are not known")}
    of = [one.judgement.verdict for one in judged]
    told = [
        f"{of.count(v)} {words[v][of.count(v) != 1]}"
        for v in (WORKS, LESS, FAILS, UNKNOWN)
        if v in of
    ]
    return ", ".join(told)

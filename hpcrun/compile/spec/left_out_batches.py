"""Check ``recovery.on_nan`` and ``on_spike``: whether what they ask for can be done."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hpcrun.compile.source.problems import Reporter
from hpcrun.policy import frameworks
from hpcrun.policy.next_attempt import ANSWERS, SKIP

# Programs of these make batches of their own, of which a session knows nothing.
_OWN_BATCHES = {
    *("accelerate", "composer", "huggingface", "jax", "lightning", "tensorflow"),
    frameworks.BATCH,
}


def check(
    spec: dict[str, Any],
    kind: str | None,
    framework: str,
    report: Reporter,
    note: Callable[[str], object],
) -> None:
    """Report what cannot be done; the parameters are those of `smaller_batches.check`."""
    recovery = spec["recovery"]
    if recovery["spike"] <= 1:
        found = f"found {recovery['spike']}; accepted are numbers above 1"
        report.at("recovery.spike", found, "5 is five times the usual")
    if recovery["on_nan"] is not None and recovery["non_finite_steps"] == 0:
        found = f"found {recovery['on_nan']!r}, and recovery.non_finite_steps is 0, which is never"
        report.at("recovery.on_nan", found, "take 1 or more of them")
    asked = [key for key in ANSWERS.values() if recovery[key] is not None]
    if kind in (None, "function") or not asked:
        return
    for key in asked:
        if recovery[key] == SKIP and framework in _OWN_BATCHES:
            found = f"found {SKIP!r}, and the batches of {framework} are the program's own"
            hint = "leave it out; a batch can be left out where it is one of session.loader's"
            report.at(f"recovery.{key}", found, hint)
            return
    note(
        f"recovery.{' and '.join(asked)}: the losses of hpcrun.session() are judged, those that a "
        "program prints are not"
    )

"""Sentences on the batches with which a training went bad, and on leaving them out."""

from __future__ import annotations

from collections.abc import Sequence

from hpcrun.policy import next_attempt
from hpcrun.state.ledger import Attempt
from hpcrun.state.spec.recovery_block import Recovery
from hpcrun.text import agreeing


def of_attempt(one: Attempt) -> str:
    """Describe the batch with which an attempt went bad; empty if it did not, or is unknown."""
    found = one.end.get("bad_step") or {}
    samples, step = found.get("samples"), found.get("step")
    if not samples or step is None:
        return ""
    epoch = f" of epoch {found['epoch'] + 1:,}" if found.get("epoch") is not None else ""
    what = f"global batch {found.get('batch') or 0:,}, samples {samples[0]:,} to {samples[-1]:,}"
    if (one.decided or {}).get("left_out"):
        return f"Left out from then on: {what}{epoch}, on which step {step:,} trained."
    return f"Step {step:,} trained on {what}{epoch}."


def left_out(attempts: Sequence[Attempt]) -> str:
    """Return in words how many batches a run leaves out; empty for none."""
    number = len(next_attempt.left_out(attempts))
    return f"{number:,} global {agreeing(number, 'batch', 'batches')} left out" if number else ""


def advice(kind: str, policy: Recovery, attempts: Sequence[Attempt], go_on: str) -> str:
    """Say how a run that ended so goes on without such a batch."""
    key = next_attempt.ANSWERS[kind]
    if getattr(policy, key) == next_attempt.SKIP:
        told = left_out(attempts) or "none so far, as the samples are not known"
        return f"recovery.{key} is skip: {told}. {go_on}."
    return (
        f"`hpcrun submit` with recovery.{key}=skip has it leave out the batch with which that "
        f"begins, where its samples are those of hpcrun.session(). {go_on}."
    )

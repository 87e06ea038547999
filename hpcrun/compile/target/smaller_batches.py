"""Check ``recovery.shrink_micro_batch``: whether a smaller micro batch reaches the program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hpcrun.compile.source.problems import Reporter
from hpcrun.policy import batch
from hpcrun.policy.batch import Triple
from hpcrun.text import listed

# What makes its own batches of flags, with which DeepSpeed's have to agree.
_TRAINERS = ("accelerate", "composer", "huggingface", "lightning")
_KEY = "recovery.shrink_micro_batch"
_PLACEHOLDER = "${hpcrun:deepspeed_config}"


def check(
    spec: dict[str, Any],
    kind: str | None,
    framework: str,
    report: Reporter,
    note: Callable[[str], object],
) -> None:
    """Report a number of halvings that is wrong, or could not reach the program.

    Parameters
    ----------
    spec
        The checked spec, its batch triple solved.
    kind
        The kind of the entry; None if it was not found.
    framework
        The name of what the program trains with.
    report
        For keys of the whole spec.
    note
        Takes what the user should know about a spec that is accepted.
    """
    wanted = spec["recovery"]["shrink_micro_batch"]
    report.at_least(_KEY, wanted, 0)
    if wanted < 1 or kind is None:
        return
    config = spec["deepspeed"]
    if framework in _TRAINERS:
        found = f"found {wanted}, and the batch of {framework} is in the program's own flags"
        report.at(_KEY, found, "leave it out, and give the program a smaller batch by its flag")
    elif Triple.known(config) is None:
        left = [key for key in batch.KEYS if not isinstance(config.get(key), int)]
        found = f"found {wanted}, and the DeepSpeed configuration leaves {listed(left, 3)} open"
        hint = "give deepspeed.train_batch_size and deepspeed.train_micro_batch_size_per_gpu"
        report.at(_KEY, found, hint)
    elif kind != "function" and _PLACEHOLDER not in repr(spec):
        note(
            f"{_KEY}: smaller micro batches are in {_PLACEHOLDER} and in hpcrun.session(); the "
            "spec does not name the first, so the program has to ask the second"
        )

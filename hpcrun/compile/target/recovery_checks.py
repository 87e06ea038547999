"""Check whether what ``recovery`` asks for can reach the program: other batches, other sizes."""

from __future__ import annotations

from hpcrun.compile.target.draft import OWN_LOOPS, TRAINERS, SpecDraft
from hpcrun.policy import batch, frameworks
from hpcrun.policy.batch import Triple
from hpcrun.policy.next_attempt import ANSWERS, SKIP
from hpcrun.text import listed

_MICRO = "recovery.shrink_micro_batch"
_PLACEHOLDER = "${hpcrun:deepspeed_config}"


def check(draft: SpecDraft) -> None:
    """Report what of ``recovery`` could not be done, once the batch triple is solved."""
    says_what = isinstance(draft.config.get(batch.TRAIN), int)
    if draft.spec["recovery"]["shrink"] and draft.kind != "function" and not says_what:
        draft.note(
            f"recovery.shrink does nothing: no deepspeed.{batch.TRAIN} says what is to be kept"
        )
    if not draft.report.problems.under("deepspeed", "recovery", "framework"):
        _check_smaller_batches(draft)
        _check_left_out_batches(draft)


def _check_smaller_batches(draft: SpecDraft) -> None:
    wanted, report = draft.spec["recovery"]["shrink_micro_batch"], draft.report
    report.at_least(_MICRO, wanted, 0)
    if wanted < 1 or draft.kind is None:
        return
    if draft.framework in TRAINERS:
        found = f"found {wanted}, and the batch of {draft.framework} is in the program's own flags"
        report.at(_MICRO, found, "leave it out, and give the program a smaller batch by its flag")
    elif Triple.of_config(draft.config) is None:
        left = [key for key in batch.KEYS if not isinstance(draft.config.get(key), int)]
        found = f"found {wanted}, and the DeepSpeed configuration leaves {listed(left, 3)} open"
        hint = "give deepspeed.train_batch_size and deepspeed.train_micro_batch_size_per_gpu"
        report.at(_MICRO, found, hint)
    elif draft.kind != "function" and _PLACEHOLDER not in repr(draft.spec):
        draft.note(
            f"{_MICRO}: smaller micro batches are in {_PLACEHOLDER} and in hpcrun.session(); the "
            "spec does not name the first, so the program has to ask the second"
        )


def _check_left_out_batches(draft: SpecDraft) -> None:
    recovery, report = draft.spec["recovery"], draft.report
    if recovery["spike"] <= 1:
        found = f"found {recovery['spike']}; accepted are numbers above 1"
        report.at("recovery.spike", found, "5 is five times the usual")
    if recovery["on_nan"] is not None and recovery["non_finite_steps"] == 0:
        found = f"found {recovery['on_nan']!r}, and recovery.non_finite_steps is 0, which is never"
        report.at("recovery.on_nan", found, "take 1 or more of them")
    asked = [key for key in ANSWERS.values() if recovery[key] is not None]
    if draft.kind in (None, "function") or not asked:
        return
    for key in asked:
        if recovery[key] == SKIP and draft.framework in (*OWN_LOOPS, frameworks.BATCH):
            found = f"found {SKIP!r}, and the batches of {draft.framework} are the program's own"
            hint = "leave it out; a batch can be left out where it is one of session.loader's"
            report.at(f"recovery.{key}", found, hint)
            return
    draft.note(
        f"recovery.{' and '.join(asked)}: the losses of hpcrun.session() are judged, those that a "
        "program prints are not"
    )

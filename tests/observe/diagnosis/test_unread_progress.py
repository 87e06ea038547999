"""The pattern that is proposed for the steps that a program prints, and where it is said."""

from __future__ import annotations

import re

import pytest

from hpcrun.observe.diagnosis.unread_progress import proposed

# Lines of step 1, 2, 3 -> what the proposed pattern reads in those of step 2; None: no proposal.
FORMS: dict[str, tuple[str, dict[str, str] | None]] = {
    "a plain loop": (
        "step {n}/5 loss 0.{n}",
        {"step": "2", "total": "5", "loss": "0.2"},
    ),
    "a logger": (
        "[2026-11-24 10:00:0{n},123] INFO train: Step {n} of 300, loss=1e-0{n}, lr: 0.1",
        {"step": "2", "total": "300", "loss": "1e-02", "lr": "0.1"},
    ),
    "nanoGPT": (
        "iter {n}: loss 2.30{n}, time 12.00ms, mfu 1.0%",
        {"step": "2", "loss": "2.302", "mfu": "1.0"},
    ),
    "epochs alone": ("epoch {n} val_loss: 0.{n}", {"step": "2", "val_loss": "0.2"}),
    "a name that is hpcrun's own": ("step {n} time 0.5 acc 0.9", {"step": "2", "acc": "0.9"}),
    "steps that begin anew": ("Epoch 1 Step [{m}/2] loss 0.1", None),
    "one step again and again": ("waiting at step 7 for 0.{n}", None),
    "prose": ("the next step is number {n}", None),
    "a version": ("uses step 1.{n}", None),
}


@pytest.mark.parametrize("name", FORMS)
def test_a_form_that_is_unmistakable_is_proposed(name: str) -> None:
    form, expected = FORMS[name]
    lines = [form.format(n=n, m=(n - 1) % 2 + 1) for n in (1, 2, 3)]
    pattern = proposed(["reading data", *lines, "done"])
    if expected is None:
        assert pattern is None
        return
    assert pattern is not None
    assert "'" not in pattern
    found = re.search(pattern, lines[1])
    assert found is not None
    assert found.groupdict() == expected


def test_a_pattern_reads_every_line_or_is_not_proposed() -> None:
    lines = ["step 1 loss 0.1", "step 2", "step 3 loss 0.1"]
    assert proposed(lines) is None


def test_a_hostile_log_gives_no_other_text() -> None:
    lines = [f"step {n}/9 loss 0.1 \x1b[2J'; rm -rf / #" for n in range(1, 9)]
    pattern = proposed(lines)
    assert pattern == r"step +(?P<step>\d+)/(?P<total>\d+).*?\bloss +(?P<loss>[-+.\w]+)"

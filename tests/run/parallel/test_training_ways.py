"""Every pair of a layout, a ZeRO stage, an offload, an accumulation and a precision trains as one
process does, or is refused; what ranks hold alike is compared all along.

HPCRUN_THOROUGH=1 trains all that is accepted. CI trains as many as have every pair once, over the
days of a week, and each day what was once wrong.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from hpcrun.policy.training_ways import LAYOUTS, refusals
from tests.run.parallel.trials import Trial
from tests.support import operators

pytestmark = [pytest.mark.training]

torch = pytest.importorskip("torch")
pytest.importorskip("deepspeed")

REPOSITORY = Path(__file__).resolve().parents[3]
DAYS = 7
TOLERANCE = {"fp32": 1e-5, "torch_autocast": 2e-2, "bf16": 2e-2}
# Without ZeRO bf16 has no weights in fp32, and loses what is small.
WITHOUT_MASTERS = 0.15
# (stage, what is offloaded to the processor's memory)
ZERO: tuple[tuple[int, tuple[str, ...]], ...] = (
    *((0, ()), (1, ()), (1, ("optimizer",)), (2, ()), (2, ("optimizer",))),
    *((3, ()), (3, ("optimizer",)), (3, ("param",)), (3, ("optimizer", "param"))),
)
OFTEN = [
    Trial({"sequence": 2}, 3),
    Trial({"tensor": 2, "sequence": 2}, 3, ranks=8),
    Trial({"pipeline": 2, "sequence": 2}, 1, ranks=8),
]


def ways() -> Iterator[Trial]:
    """All ways to train, also those that are refused."""
    for axes, (stage, offload), accumulation, precision, clipping in itertools.product(
        ((), *LAYOUTS), ZERO, (1, 2), TOLERANCE, (0.05, 0.0)
    ):
        yield Trial(
            dict.fromkeys(axes, 2),
            stage,
            dict.fromkeys(offload, "cpu"),
            accumulation,
            precision,
            clipping,
            experts="expert" in axes,
            ranks=8 if len(axes) > 2 else 4,
        )


def accepted() -> list[Trial]:
    """Return the ways that no rule refuses."""
    return [each for each in ways() if not any(refusals(each.parallel, each.deepspeed()))]


def pairs(trial: Trial) -> frozenset[Any]:
    """The pairs of values that a way has."""
    values = (
        ("layout", *trial.parallel),
        ("zero", trial.stage, *trial.offload),
        ("accumulation", trial.accumulation),
        ("precision", trial.precision),
        ("clipping", trial.clipping),
    )
    return frozenset(itertools.combinations(values, 2))


def cover(among: list[Trial]) -> list[Trial]:
    """Few of them that have every pair that one of them has."""
    held = {number: pairs(each) for number, each in enumerate(among)}
    left = frozenset().union(*held.values())
    chosen = []
    while left:
        best = max(held, key=lambda number: len(held[number] & left))
        chosen.append(among[best])
        left -= held[best]
    return chosen


def of_today() -> list[Trial]:
    """Every seventh of the cover, from another one each day."""
    if os.environ.get("HPCRUN_THOROUGH") == "1":
        return accepted()
    return [*OFTEN, *cover(accepted())[int(time.time() // 86400) % DAYS :: DAYS]]


def train(trials: list[Trial], extensions: Path) -> list[dict[str, Any]]:
    """Run trials and return their results; ``extensions`` has DeepSpeed's operators compiled."""
    ran = subprocess.run(
        [sys.executable, "-m", "tests.run.parallel.trials"],
        input=json.dumps([asdict(each) for each in trials]),
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        env={
            **os.environ,
            **{"DS_ACCELERATOR": "cpu", "PATH": operators.PATH},
            "TORCH_EXTENSIONS_DIR": str(extensions),
        },
        check=False,
    )
    lines = [line for line in ran.stdout.splitlines() if line.startswith("{")]
    assert len(lines) == len(trials), ran.stderr[-2000:]
    return [json.loads(line) for line in lines]


@pytest.mark.timeout(3600)
def test_what_is_accepted_trains_as_one_process_does(own_operators: Path) -> None:
    trials = of_today()
    # Experts have no process beside them, but DeepSpeed without a layout.
    undivided = [Trial(clipping=each, stage=each > 0, experts=True) for each in (0.05, 0.0)]
    *found, clipped, unclipped = train([*trials, *undivided], own_operators)
    wrong = []
    for trial, one in zip(trials, found, strict=True):
        peer = clipped if trial.clipping else unclipped
        if told := one.get("error") or peer.get("error"):
            wrong.append((trial, told))
            continue
        expected = peer["losses"] if trial.experts else one["alone"]
        lossy = trial.precision == "bf16" and not trial.stage
        within = pytest.approx(
            expected, rel=WITHOUT_MASTERS if lossy else TOLERANCE[trial.precision]
        )
        if one["losses"] != within:
            wrong.append((trial, [*zip(one["losses"], expected, strict=True)]))
    assert not wrong


def test_what_ranks_should_hold_alike_is_compared(own_operators: Path) -> None:
    """One bit of one rank's weights; and sequences that ZeRO 3 never averages over."""
    flipped, apart, both = train(
        [
            Trial(broken="flip"),
            Trial({"sequence": 2}, 3, broken="sequence"),
            Trial({"tensor": 2}, broken="flip"),
        ],
        own_operators,
    )
    said = "step 5: the weights of rank 2 (n2) are not those of 3 other ranks that hold the same"
    assert f"{said}; at step 3 they agreed" in flipped["error"]
    assert "step 1: the weights of ranks that should hold the same differ" in apart["error"]
    assert "rank 0 (n1), rank 2 (n2); at step 3 they agreed" in both["error"]


def test_every_pair_of_a_layout_is_trained_or_refused() -> None:
    """The table of docs/parallelism.md says which."""
    among = accepted()
    trained = frozenset().union(*map(pairs, cover(among)))
    wanted = {(tuple(each.parallel), each.stage, tuple(each.offload)) for each in among}
    shown = {}
    for axes in LAYOUTS:
        cells = []
        for stage, offload in ZERO:
            has = (("layout", *axes), ("zero", stage, *offload)) in trained
            is_accepted = (axes, stage, offload) in wanted
            assert has == is_accepted
            cells.append("trained" if is_accepted else "refused")
        shown[" x ".join(f"`{axis}`" for axis in axes)] = cells
    text = (REPOSITORY / "docs/parallelism.md").read_text()
    for layout, cells in shown.items():
        assert f"| {layout} | {' | '.join(cells)} |" in text, (layout, cells)

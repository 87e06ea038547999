"""The shipped training program, on two ranks of the local executor, stopped and gone on with."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from hpcrun.state import files, layout, ledger
from hpcrun.state.plan import Entry
from tests.support import operators
from tests.support.place import REPOSITORY, Place

pytestmark = [pytest.mark.training]

ENTRY = Entry("function", module="language_model", function="train", import_root=".")
DEEPSPEED: dict[str, Any] = {
    "train_batch_size": 8,
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 2,
    "gradient_clipping": 1.0,
    "zero_optimization": {"stage": 2},
    "optimizer": {"type": "AdamW", "params": {"lr": 3.0e-3, "torch_adam": True}},
    "scheduler": {
        "type": "WarmupDecayLR",
        "params": {"warmup_num_steps": 4, "total_num_steps": 12},
    },
}


def _submit(place: Place, total_steps: int, **checkpoint: Any) -> None:
    model = {"layers": 1, "width": 32, "heads": 2, "context": 16}
    config = {"seed": 3, "evaluate_every": 4, "data_bytes": 200_000, "model": model}
    place.submit(
        ENTRY,
        ranks=2,
        config={**config, "total_steps": total_steps},
        deepspeed=DEEPSPEED,
        checkpoint={"every": 4, "keep": 2, **checkpoint},
    )


def _metrics(place: Place, attempt: int) -> dict[int, tuple[float, float, float | None]]:
    """Step -> loss, learning rate and held-out loss, exactly."""
    return {
        line["step"]: (line["loss"], line["lr"], line.get("eval/loss"))
        for line in files.read_lines(place.run.attempt(attempt).metrics)
    }


def _events(place: Place, attempt: int) -> list[tuple[str, int | None]]:
    found = files.read_lines(place.run.attempt(attempt).session)
    return [(record["event"], record.get("step")) for record in found]


def test_stopped_and_gone_on_with_is_bit_identical(
    warm_operators: Path, place: Place, tmp_path: Path
) -> None:
    shutil.copy(REPOSITORY / "jobs" / "language_model.py", place.code)
    operators.link(warm_operators, place.root)

    _submit(place, total_steps=12)
    code, said = place.supervise(timeout=200)
    assert code == 0, said + place.output()
    whole = _metrics(place, 1)
    assert sorted(whole) == list(range(1, 13))
    assert [step for step, values in whole.items() if values[2] is not None] == [4, 8, 12]
    assert whole[12][0] < whole[1][0]
    assert _events(place, 1) == [
        *(("restored", 0), ("started", None)),
        *(("saved", 4), ("saved", 8), ("saved", 12), ("finished", 12)),
    ]

    # The same run from the beginning, first to step 6, then, in another submission, to its end.
    place.run.directory.rename(tmp_path / "whole")
    _submit(place, total_steps=6)
    assert place.supervise(timeout=200)[0] == 0
    assert sorted(_metrics(place, 1)) == list(range(1, 7))
    ledger.set_intent(place.run, None)
    _submit(place, total_steps=12)
    assert place.supervise(timeout=200)[0] == 0
    assert _events(place, 2) == [
        *(("restored", 6), ("started", None)),
        *(("saved", 8), ("saved", 12), ("finished", 12)),
    ]
    assert {**_metrics(place, 1), **_metrics(place, 2)} == whole
    assert sorted(_metrics(place, 2)) == list(range(7, 13))
    assert [attempt.outcome for attempt in ledger.read(place.run)] == ["completed"] * 2
    # What they write is not covered with warnings of theirs.
    assert "FutureWarning" not in place.output(attempt=2)

    # Another run, which begins with the weights of that one's step 8.
    pre = layout.experiment(place.root, "pre")
    pre.submission(1).directory.mkdir(parents=True)
    (tmp_path / "whole").rename(_made(pre.run(0).directory))
    place.run.directory.rename(tmp_path / "again")
    _submit(place, total_steps=2, initialize_from="pre/0@8")
    assert place.supervise(timeout=200)[0] == 0, place.output()
    assert _events(place, 1) == [
        *(("initialized", 8), ("restored", 0), ("started", None)),
        *(("saved", 2), ("finished", 2)),
    ]
    assert _metrics(place, 1)[1][0] < whole[4][0] < whole[1][0]


def _made(directory: Path) -> Path:
    directory.parent.mkdir(parents=True)
    return directory

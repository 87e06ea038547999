"""The programs in `jobs` beside the language model: their data, their parts, ranks that agree."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from typing import Any

import pytest

from hpcrun.state import files
from hpcrun.state.plan import Entry
from tests.support import operators
from tests.support.place import REPOSITORY, Place

torch = pytest.importorskip("torch")


def _job(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, REPOSITORY / "jobs" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("path", sorted((REPOSITORY / "jobs").glob("*.py")), ids=lambda p: p.stem)
def test_a_program_to_copy_is_short(path: Path) -> None:
    assert len(path.read_text().splitlines()) < 200


def test_masks_of_a_window() -> None:
    job = _job("masked_language_model")
    windows = job.Windows(torch.arange(256, dtype=torch.uint8).repeat(200), 256)
    shown, wanted = job.masked_once(windows, 200)
    again, _ = job.masked_once(windows, 200)
    assert torch.equal(shown, again)
    text = torch.arange(256).repeat(200, 1)
    chosen = wanted != job.IGNORED
    assert torch.equal(wanted[chosen], text[chosen])
    assert torch.equal(shown[~chosen], text[~chosen])
    assert float(chosen.float().mean()) == pytest.approx(0.15, abs=0.01)
    masked, left = shown[chosen] == job.MASK, shown[chosen] == text[chosen]
    assert float(masked.float().mean()) == pytest.approx(0.8, abs=0.02)
    assert float(left.float().mean()) == pytest.approx(0.1, abs=0.02)


def test_a_place_that_is_masked_is_guessed_from_both_sides() -> None:
    job = _job("masked_language_model")
    model = job.MaskedLanguageModel(1, 16, 2, 8, dropout=0.0, deviation=0.5).eval()
    text = torch.full((1, 8), job.MASK)
    for place in (0, 7):
        other = text.clone()
        other[0, place] = 65
        assert not torch.allclose(model(text)[0, 4], model(other)[0, 4], atol=1e-4)
    assert model(text[:0]).shape == (0, 8, job.VOCABULARY)


DEEPSPEED: dict[str, Any] = {
    "train_batch_size": 64,
    "gradient_accumulation_steps": 1,
    "gradient_clipping": 1.0,
    "zero_optimization": {"stage": 1},
    "optimizer": {"type": "AdamW", "params": {"lr": 3.0e-3, "torch_adam": True}},
}


@pytest.mark.usually
@pytest.mark.training
def test_images_on_one_rank_and_on_two(place: Place, warm_operators: Path, tmp_path: Path) -> None:
    """Batch norm sees the images of all ranks, so that the losses are those of one rank."""
    pytest.importorskip("sklearn", reason="`make test` installs it")
    shutil.copy(REPOSITORY / "jobs" / "image_classification.py", place.code)
    operators.link(warm_operators, place.root)
    entry = Entry("function", module="image_classification", function="train", import_root=".")
    model = {"width": 8, "dropout": 0.0, "initialization": "he"}
    config = {"seed": 1, "total_steps": 30, "evaluate_every": 30, "num_workers": 0}
    found = []
    for ranks in (1, 2):
        place.submit(
            *(entry,),
            ranks=ranks,
            config={**config, "label_smoothing": 0.1, "model": model},
            deepspeed={**DEEPSPEED, "train_micro_batch_size_per_gpu": 64 // ranks},
            checkpoint={"every": 0},
        )
        code, said = place.supervise(timeout=200)
        assert code == 0, said + place.output()
        found.append(list(files.read_lines(place.run.attempt(1).metrics)))
        place.run.directory.rename(tmp_path / f"with-{ranks}")
    alone, divided = ([line["loss"] for line in lines] for lines in found)
    assert divided[:5] == pytest.approx(alone[:5], rel=1e-4)
    assert alone[-1] < 0.8 * alone[0]

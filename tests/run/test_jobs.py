"""The programs in `jobs` beside the language model: their data, their parts, ranks that agree."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from bench.jobs import share_as_far
from bench.jobs_plain import warmup_decay
from hpcrun.run.rank.config import Config
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
    # Ranks average their means: the same as one over all only where each has as many.
    assert chosen.sum(1).tolist() == [38] * 200
    assert 20 < float(chosen.sum(0).float().mean()) < 40
    assert int(chosen.sum(0).min()) > 10
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


@pytest.fixture
def jobs_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs that take a model of another find it, as they do beside each other."""
    monkeypatch.syspath_prepend(str(REPOSITORY / "jobs"))


SMALL = {"layers": 2, "width": 16, "heads": 2}


def _lora(**lora: Any) -> Config:
    return Config({"model": SMALL, "lora": {"rank": 2, "alpha": 4, "targets": ["query"], **lora}})


@pytest.mark.usefixtures("jobs_on_path")
def test_adapters_begin_as_nothing_and_are_merged_into_the_base(tmp_path: Path) -> None:
    job = _job("lora_fine_tuning")
    torch.manual_seed(0)
    base = job.build_layers(**SMALL, vocabulary=job.BYTES)
    torch.save(base.state_dict(), tmp_path / "pytorch_model.bin")
    model = job.build_model(_lora(targets=["query", "expand"]))
    job.read_base(model, str(tmp_path))
    text = torch.randint(256, (3, 8))
    assert torch.equal(model(text), base(text))
    trained = {name for name, one in model.named_parameters() if one.requires_grad}
    layers = ("1.query", "1.expand", "2.query", "2.expand")
    assert trained == {f"{layer}.{part}" for layer in layers for part in ("down", "up")}

    for name in trained:
        torch.nn.init.normal_(model.get_parameter(name))
    merged = job.merged(model.state_dict())
    assert {k: v.shape for k, v in merged.items()} == {
        k: v.shape for k, v in base.state_dict().items()
    }
    assert torch.equal(merged["1.key.weight"], base.state_dict()["1.key.weight"])
    base.load_state_dict(merged)
    assert torch.allclose(model(text), base(text), rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("jobs_on_path")
def test_preferences_begin_at_the_base_and_are_learnt() -> None:
    """The reference of DPO is the model without its adapters, whatever they have learnt."""
    job = _job("preference_tuning")
    torch.manual_seed(0)
    model = job.build_model(_lora(targets=["query", "contract"]))
    engine = torch.nn.parallel.DataParallel(model, device_ids=[])
    text = torch.arange(1000).remainder(251).to(torch.uint8)
    pairs = job.Pairs(text, prompt=6, answer=4)
    batch = torch.stack([pairs[index] for index in range(32)])
    assert torch.equal(batch[:, 0, :6], batch[:, 1, :6])
    assert not torch.equal(batch[:, 0, 6:], batch[:, 1, 6:])
    config = Config({"prompt": 6, "beta": 1.0})
    assert job.margins(engine, batch, config).tolist() == [0.0] * 32
    before = job.answer_scores(model, batch, 6)
    optimizer = torch.optim.AdamW([one for one in model.parameters() if one.requires_grad], 0.05)
    for _ in range(20):
        optimizer.zero_grad()
        (-torch.nn.functional.logsigmoid(job.margins(engine, batch, config)).mean()).backward()
        optimizer.step()
    assert (job.margins(engine, batch, config) > 0).float().mean() > 0.9
    with job.reference(model):
        assert torch.equal(job.answer_scores(model, batch, 6), before)
    assert not torch.equal(job.answer_scores(model, batch, 6), before)


def test_llama_looks_back_alone_and_has_124_million_parameters() -> None:
    job = _job("llama")
    spec = yaml.safe_load((REPOSITORY / "configs/experiments/llama.yaml").read_text())
    config = Config({**spec["config"], "context": 24})
    torch.manual_seed(0)
    model = job.build_model(config)
    text = torch.randint(256, (2, 24))
    other = text.clone()
    other[:, 15:] = 7
    assert torch.equal(model(text)[:, :15], model(other)[:, :15])
    assert not torch.equal(model(text)[:, 16:], model(other)[:, 16:])
    # Positions count by their distance: a text later in a window is read alike.
    assert torch.allclose(
        job.rotated(torch.ones(1, 1, 9, 8))[..., 3, :]
        @ job.rotated(torch.ones(1, 1, 9, 8))[0, 0, 5],
        job.rotated(torch.ones(1, 1, 9, 8))[..., 6, :]
        @ job.rotated(torch.ones(1, 1, 9, 8))[0, 0, 8],
    )
    with torch.device("meta"):
        large = job.build_model(Config({**spec["config"], "size": "124M"}))
    assert round(sum(one.numel() for one in large.parameters()) / 1e6) == 124


@pytest.mark.usefixtures("jobs_on_path")
def test_a_base_of_tied_weights_in_safetensors_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`hpcrun weights` leaves out the second name; the package is not installed everywhere."""
    job = _job("lora_fine_tuning")
    base = job.build_layers(**SMALL, vocabulary=job.BYTES)
    weights = base.state_dict()
    first = weights.pop("4.embedding.weight")
    assert torch.equal(first, weights["0.weight"])
    monkeypatch.setattr(job, "read_weights", lambda directory: weights)
    model = job.build_model(_lora())
    job.read_base(model, str(tmp_path))
    text = torch.randint(256, (3, 8))
    assert torch.equal(model(text), base(text))


@pytest.mark.usefixtures("jobs_on_path")
def test_a_base_that_is_none_is_told(tmp_path: Path) -> None:
    job = _job("lora_fine_tuning")
    model = job.build_model(_lora())
    with pytest.raises(ValueError, match=r"hpcrun weights causal-language-model/0 -o base"):
        job.read_base(model, None)
    with pytest.raises(FileNotFoundError, match=r"has no pytorch_model\.bin"):
        job.read_base(model, str(tmp_path))
    other = job.build_layers(layers=3, width=16, heads=2, vocabulary=job.BYTES)
    torch.save(other.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"of another model .*3\.query\.weight.* unknown here"):
        job.read_base(model, str(tmp_path))
    torch.save({"0.weight": other.state_dict()["0.weight"]}, tmp_path / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"'1\.query\.weight'.* are missing there"):
        job.read_base(model, str(tmp_path))
    with pytest.raises(
        ValueError, match=r"no layer is called \['q_proj'\]; there are \['contract'"
    ):
        job.build_model(_lora(targets=["q_proj"]))


@pytest.mark.usefixtures("jobs_on_path")
def test_a_student_learns_from_scores_at_a_temperature() -> None:
    job = _job("distillation")
    torch.manual_seed(0)
    scores, taught = torch.randn(2, 5, 10)
    labels = torch.arange(5)
    same = job.distillation_loss(taught, taught, labels, 4.0, 1.0)
    assert float(same) == pytest.approx(0, abs=1e-6)
    soft = [(each / 4).softmax(1) for each in (taught, scores)]
    divergence = (soft[0] * (soft[0].log() - soft[1].log())).sum(1).mean()
    found = job.distillation_loss(scores, taught, labels, 4.0, 0.75)
    hard = torch.nn.functional.cross_entropy(scores, labels)
    assert float(found) == pytest.approx(float(12 * divergence + 0.25 * hard), rel=1e-5)

    # An image without a label counts in the number of those that the mean is of.
    labels[1:] = job.UNLABELLED
    one = torch.nn.functional.cross_entropy(scores[:1], labels[:1]) / 5
    found = job.distillation_loss(scores, taught, labels, 4.0, 0.0)
    assert float(found) == pytest.approx(float(one), rel=1e-5)
    labels[:] = job.UNLABELLED
    assert float(job.distillation_loss(scores, taught, labels, 4.0, 0.0)) == 0


@pytest.mark.usefixtures("jobs_on_path")
def test_a_teacher_is_what_was_exported(tmp_path: Path) -> None:
    job = _job("distillation")
    teacher = {"width": 2, "dropout": 0.5, "initialization": "he"}
    config = {"teacher": {"weights": None, "model": teacher}}
    with pytest.raises(ValueError, match=r"hpcrun weights image-classification/0 -o teacher"):
        job.read_teacher(Config(config), torch.device("cpu"))
    exported = job.Network(**teacher)
    torch.save(exported.state_dict(), tmp_path / "pytorch_model.bin")
    config = {"teacher": {"weights": str(tmp_path), "model": teacher}}
    read = job.read_teacher(Config(config), torch.device("cpu"))
    images = torch.randn(4, 1, 8, 8)
    assert torch.equal(read(images), exported.eval()(images))
    assert not any(one.requires_grad for one in read.parameters())


DEEPSPEED: dict[str, Any] = {
    "train_batch_size": 64,
    "gradient_accumulation_steps": 1,
    "gradient_clipping": 1.0,
    "zero_optimization": {"stage": 1},
    "optimizer": {"type": "AdamW", "params": {"lr": 3.0e-3, "torch_adam": True}},
}


@pytest.mark.usually
@pytest.mark.training
def test_the_plain_peer_has_the_schedule_of_deepspeed() -> None:
    pytest.importorskip("deepspeed")
    from deepspeed.runtime.lr_schedules import WarmupDecayLR

    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    schedule = WarmupDecayLR(optimizer, 30, warmup_max_lr=2.0, warmup_num_steps=7)
    for step in range(1, 31):
        part = warmup_decay(step, 7, 30)
        assert 2 * part == pytest.approx(optimizer.param_groups[0]["lr"], abs=1e-9), step
        schedule.step()


def test_a_difference_of_means_is_as_likely_as_divisions_that_have_it() -> None:
    assert share_as_far([1, 2, 3, 4, 5], [6, 7, 8, 9, 10]) == 2 / 252
    assert share_as_far([1, 2], [1, 2]) == 1
    # Of six divisions of 0, 1, 2, 9 four have means at least as far apart as 0, 2 and 1, 9.
    assert share_as_far([0, 2], [1, 9]) == pytest.approx(4 / 6)


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


@pytest.mark.usually
@pytest.mark.training
@pytest.mark.usefixtures("jobs_on_path")
def test_adapters_on_one_rank_and_on_two(
    place: Place, warm_operators: Path, tmp_path: Path
) -> None:
    job = _job("lora_fine_tuning")
    base = job.build_layers(**SMALL, vocabulary=job.BYTES)
    torch.save(base.state_dict(), tmp_path / "pytorch_model.bin")
    for name in ("lora_fine_tuning", "causal_language_model"):
        shutil.copy(REPOSITORY / "jobs" / f"{name}.py", place.code)
    operators.link(warm_operators, place.root)
    entry = Entry("function", module="lora_fine_tuning", function="train", import_root=".")
    lora = {"rank": 4, "alpha": 8, "targets": ["query", "value", "contract"]}
    config = {"seed": 1, "total_steps": 10, "evaluate_every": 10, "evaluate_windows": 40}
    found = []
    for ranks in (1, 2):
        place.submit(
            *(entry,),
            ranks=ranks,
            config={
                **{**config, "num_workers": 0, "base": str(tmp_path), "context": 32},
                **{"model": SMALL, "lora": lora},
            },
            deepspeed={**DEEPSPEED, "train_micro_batch_size_per_gpu": 64 // ranks},
            checkpoint={"every": 0},
        )
        code, said = place.supervise(timeout=200)
        assert code == 0, said + place.output()
        found.append(list(files.read_lines(place.run.attempt(1).metrics)))
        place.run.directory.rename(tmp_path / f"with-{ranks}")
    alone, divided = ([line["loss"] for line in lines] for lines in found)
    assert divided == pytest.approx(alone, rel=1e-4)
    # The same weights have the same result to the bit, and training changes it.
    (one, two) = (lines[-1] for lines in found)
    assert one["eval/base_loss"] == two["eval/base_loss"]
    assert one["eval/loss"] < one["eval/base_loss"]

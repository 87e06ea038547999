"""The recipes of `recovery.resume` with the real programs, killed after a save."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.frameworks.test_programs import Study, met

pytestmark = pytest.mark.timeout(600)
CASES = {
    "hf-trainer": (
        "hf_trainer.py",
        "config: {output_dir: out, max_steps: 60, save_steps: 10, logging_steps: 5, "
        "per_device_train_batch_size: 2, report_to: none}\n",
        "recovery: {resume: hf-trainer}\n",
        "checkpoint-10/trainer_state.json",
        "ranks 2, from {source}\n",
    ),
    "accelerate": (
        "accelerate_loop.py",
        "config: {output_dir: out, pause: 0.05, steps: 60}\n",
        "recovery: {resume: accelerate}\n",
        "step_10/random_states_1.pkl",
        "ranks 2, from step {step}\n",
    ),
    "lightning": (
        "lightning_fit.py",
        "config: {devices: 2, max_steps: 60, pause: 0.05}\n",
        "recovery: {resume: lightning}\n",
        "checkpoints/*step=10.ckpt",
        "Restored all states from the checkpoint at {source}\n",
    ),
}


@pytest.fixture
def study(tmp_path: object, request: pytest.FixtureRequest) -> Iterator[Study]:
    made = Study(request.getfixturevalue("tmp_path"), CASES[request.param][0])
    yield made
    made.close()


@pytest.mark.parametrize(
    ("study", "recipe"), [(name, name) for name in CASES], indirect=["study"], ids=list(CASES)
)
def test_a_killed_program_goes_on_from_its_newest_save(study: Study, recipe: str) -> None:
    _, spec, recovery, saved, words = CASES[recipe]
    started = study.submit(spec + recovery)
    study.kill_once(started, saved)
    study.end(started)
    first, second = study.attempts(2)
    assert (first.cause["rank"], first.cause["signal"]) == (1, "SIGKILL")
    resume = second.resume
    assert resume is not None
    assert resume["resumes"]
    (argument,) = resume["arguments"]
    source = argument.partition("=")[2]
    assert resume["source"].startswith(source)
    step = source.rstrip("/").rpartition("_")[2]
    assert words.format(source=source, step=step) in study.logs(2)
    assert met(study)

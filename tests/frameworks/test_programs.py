"""Programs of frameworks, unmodified, on two ranks of the local executor, killed and resumed.

They need packages that hpcrun's own tests do without: HPCRUN_FRAMEWORKS_PYTHON names a Python that
has those of ``requirements.txt`` beside this file (`make test` builds and names it),
HPCRUN_TENSORFLOW_PYTHON one that has those of ``tensorflow.txt``. CI has no TensorFlow (600 MB),
and leaves out what ``test_recipes.py`` shows too.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpcrun.policy import frameworks
from hpcrun.policy.frameworks import RankPlace
from hpcrun.state import layout, ledger
from hpcrun.state.layout import RunPaths
from hpcrun.submission.local import processes
from tests.support.command import argv, hpcrun
from tests.support.waiting import until

PYTHONS = {
    name: os.environ.get(f"HPCRUN_{name.upper()}_PYTHON") for name in ("frameworks", "tensorflow")
}
PROGRAMS = Path(__file__).parent / "programs"
pytestmark = pytest.mark.timeout(600)
BY_HAND = pytest.mark.usually


def python_of(name: str) -> str:
    """The Python of an environment; without it the test is skipped."""
    return PYTHONS[name] or pytest.skip(f"HPCRUN_{name.upper()}_PYTHON names no Python")


class Study:
    """A program beside a spec, under a root of its own."""

    def __init__(self, directory: Path, program: str) -> None:
        name = "tensorflow" if program.startswith("tensorflow") else "frameworks"
        python = python_of(name)
        self.python, self.overrides = python, ("cluster=local", f"environment.python={python}")
        self.root, self.code = directory / "root", directory / "code"
        self.code.mkdir()
        self.program = program
        (self.code / program).write_bytes((PROGRAMS / program).read_bytes())

    @property
    def run(self) -> RunPaths:
        return layout.experiment(self.root, "study").run(0)

    def submit(self, spec: str, entry: str | None = None) -> subprocess.Popen[str]:
        """Start `hpcrun submit --wait` on a spec of two ranks."""
        entry = entry or self.program
        head = f"name: study\nentry: {entry}\nresources: {{ntasks_per_node: 2}}\n"
        path = self.code / "study.yaml"
        path.write_text(head + spec)
        command = argv("submit", path, *self.overrides, "--wait", "--root", self.root)
        pipe = subprocess.PIPE
        return subprocess.Popen(command, stdout=pipe, stderr=subprocess.STDOUT, text=True)

    def end(self, started: subprocess.Popen[str]) -> str:
        """Wait for it, and return what it and the ranks said; the run has completed."""
        said, _ = started.communicate(timeout=400)
        logs = hpcrun("logs", "study", "--root", self.root, "--attempt", "all", "--stream", "all")
        assert started.returncode == 0, said + logs.stdout
        return said + "".join(path.read_text() for path in self._rank_logs())

    def attempts(self, count: int) -> list[ledger.Attempt]:
        """The attempts of the ledger, which are so many."""
        found = ledger.read(self.run)
        why = hpcrun("why", "study", "--root", self.root).stdout
        logs = {one.number: self.logs(one.number)[-3000:] for one in found}
        assert len(found) == count, "\n".join([why, *map(str, logs.items())])
        return found

    def _rank_logs(self) -> list[Path]:
        return [path for one in self.run.attempts() for path in one.rank_logs().values()]

    def logs(self, attempt: int) -> str:
        paths = self.run.attempt(attempt).rank_logs().values()
        return "".join(path.read_text() for path in paths)

    def kill_once(self, started: subprocess.Popen[str], pattern: str) -> None:
        """Kill rank 1 as soon as a file of that pattern lies in the run's directory."""

        def saved() -> bool:
            assert started.poll() is None, started.communicate()[0]
            return any(self.run.directory.rglob(pattern))

        until(saved, timeout=300)
        mine = [each for each in self._processes() if b"RANK=1" in each[1]]
        assert mine
        for pid, _ in mine:
            os.kill(pid, signal.SIGKILL)

    def _processes(self) -> Iterator[tuple[int, list[bytes]]]:
        own = f"HPCRUN_DIRECTORY={self.run.directory}".encode()  # two of them may run at once
        for path in Path("/proc").glob("[0-9]*"):
            try:
                words = (path / "cmdline").read_bytes()
                variables = (path / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if self.program.encode() in words and own in variables:
                yield int(path.name), variables

    def close(self) -> None:
        for submission in layout.experiment(self.root, "study").submissions():
            processes.kill_all(submission.directory)


@pytest.fixture
def study(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Study]:
    made = Study(tmp_path, request.param)
    yield made
    made.close()


def met(study: Study) -> bool:
    return all(attempt.never_met is None for attempt in ledger.read(study.run))


@BY_HAND
@pytest.mark.parametrize("study", ["hf_trainer.py"], indirect=True)
def test_a_trainer(study: Study) -> None:
    spec = (
        "framework: huggingface\n"
        "config: {output_dir: out, max_steps: 60, save_steps: 10, "
        "logging_steps: 5, per_device_train_batch_size: 2, report_to: none}\n"
    )
    started = study.submit(spec)
    study.kill_once(started, "checkpoint-10/trainer_state.json")
    study.end(started)
    assert "ranks 2, from None" in study.logs(1)
    assert re.search(r"ranks 2, from .*/?out/checkpoint-\d0", study.logs(2))
    assert (study.run.work / "out/model.safetensors").exists()
    assert ledger.read(study.run)[-1].end["reached_step"] == 60
    assert met(study)


@BY_HAND
@pytest.mark.parametrize("study", ["trl_inputs.py"], indirect=True)
def test_trls_own_script(study: Study) -> None:
    subprocess.run([study.python, study.program], cwd=study.code, check=True)
    study.program = "trl.scripts.sft"
    flags = {
        **{"model_name_or_path": study.code / "model", "dataset_name": study.code / "data"},
        **{"output_dir": "out", "max_steps": 300, "save_steps": 50, "logging_steps": 10},
        **{"per_device_train_batch_size": 1, "max_length": 16, "report_to": "none"},
        **{"bf16": "false", "use_cpu": "true"},
    }
    arguments = ", ".join(f"--{name}={value}" for name, value in flags.items())
    # torch 2.13 may hang for good as the script ends (the destructor of ProcessGroupGloo).
    hang = 'recovery: {hang_after: "00:00:20"}\n'
    spec = f"framework: huggingface\nargs: [{arguments}]\n{hang}"
    started = study.submit(spec, entry="[python, -m, trl.scripts.sft]")
    study.kill_once(started, "checkpoint-50/trainer_state.json")
    study.end(started)
    first, second, *_ = ledger.read(study.run)
    assert first.cause["signal"] == "SIGKILL"
    assert second.end["reached_step"] == 300
    assert "--resume_from_checkpoint" in str(second.resume)
    assert (study.run.work / "out/model.safetensors").exists()
    assert met(study)


@BY_HAND
@pytest.mark.parametrize("study", ["accelerate_loop.py"], indirect=True)
def test_accelerate(study: Study) -> None:
    spec = "config: {output_dir: out, steps: 60, pause: 0.05}\n"
    started = study.submit(spec + "recovery: {resume: accelerate}\n")
    study.kill_once(started, "out/step_10/random_states_1.pkl")
    said = study.end(started)
    assert "framework: accelerate (accelerate_loop.py imports it)" in said
    assert "ranks 2, from step 0" in study.logs(1)
    assert re.search(r"ranks 2, from step \d0", study.logs(2))
    assert met(study)


@pytest.mark.parametrize(
    ("study", "script", "words"),
    [
        ("accelerate_loop.py", "test_script", "Test reinstantiated state"),
        pytest.param("accelerate_loop.py", "test_ops", "testing gather", marks=BY_HAND),
        pytest.param("accelerate_loop.py", "test_sync", "Test `accumulate`", marks=BY_HAND),
    ],
    indirect=["study"],
)
def test_accelerates_own_test_scripts(study: Study, script: str, words: str) -> None:
    """They say themselves whether ranks train as one process does."""
    entry = f"[python, -m, accelerate.test_utils.scripts.{script}]"
    said = study.end(study.submit("framework: accelerate\n", entry))
    assert words in said
    if script == "test_script":
        assert "Num processes: 2" in said
        assert "Training yielded the same results on one CPU or distributed setup" in said
    assert met(study)


@pytest.mark.parametrize("study", ["accelerate_loop.py"], indirect=True)
def test_accelerate_in_a_shell_where_it_is_not_detected(study: Study) -> None:
    entry = '[bash, -c, "exec python accelerate_loop.py --output_dir out"]'
    said = study.end(study.submit("", entry=entry))
    assert "framework:" not in said
    assert "ranks 2, from step 0" in said


@BY_HAND
@pytest.mark.parametrize("study", ["lightning_fit.py"], indirect=True)
def test_lightning(study: Study) -> None:
    spec = "framework: lightning\nconfig: {devices: 2, max_steps: 60, pause: 0.05}\n"
    started = study.submit(spec)
    study.kill_once(started, "checkpoints/*step=10.ckpt")
    study.end(started)
    assert "ranks 2, TorchElasticEnvironment" in study.logs(1)
    assert "Restored all states from the checkpoint" in study.logs(2)
    assert "ends at step 60" in study.logs(2)
    assert (study.run.work / "checkpoints/last.ckpt").exists()
    assert met(study)


def test_lightning_leaves_a_job_of_slurm_alone() -> None:
    python = python_of("frameworks")
    code = (
        "import lightning as L\n"
        "trainer = L.Trainer(accelerator='cpu', devices=1, logger=False)\n"
        "print(type(trainer._accelerator_connector.cluster_environment).__name__)\n"
    )
    place = RankPlace(0, 1, ("127.0.0.1",), 12345, run="study/0")
    slurm = {"SLURM_JOB_NAME": "study", "SLURM_JOB_ID": "7", "SLURM_NTASKS_PER_NODE": "1"}
    slurm |= {"SLURM_NTASKS": "1", **dict.fromkeys(("SLURM_PROCID", "SLURM_LOCALID"), "0")}
    ranks = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "SLURM_NODEID": "0"}

    def environment(**variables: str) -> str:
        known = {**os.environ, **slurm, **ranks, **variables}
        done = subprocess.run([python, "-c", code], env=known, capture_output=True, text=True)
        return done.stdout.split()[-1]

    assert environment() == "SLURMEnvironment"
    own = frameworks.of("lightning").variables(place)
    assert environment(**own) == "TorchElasticEnvironment"


@BY_HAND
@pytest.mark.parametrize("study", ["tensorflow_workers.py"], indirect=True)
def test_tensorflow(study: Study) -> None:
    started = study.submit("config: {output_dir: out, steps: 60, pause: 0.05}\n")
    study.kill_once(started, "out/ckpt-1.index")
    said = study.end(started)
    assert "framework: tensorflow (tensorflow_workers.py imports it)" in said
    assert study.logs(2).count("ranks 2\n") == 2
    assert re.search(r"restored out/ckpt-\d", study.logs(2))
    assert met(study)


@BY_HAND
@pytest.mark.parametrize("study", ["tensorflow_workers.py"], indirect=True)
def test_tensorflow_without_its_variable_is_told(study: Study) -> None:
    said = study.end(study.submit("environment: {variables: {TF_CONFIG: '{}'}}\n"))
    assert said.count("ranks 1\n") == 2
    (attempt,) = ledger.read(study.run)
    assert attempt.alone == "its 2 ranks never met: each worked alone"


@pytest.mark.parametrize("study", ["jax_train.py"], indirect=True)
def test_jax(study: Study) -> None:
    resume = "recovery: {resume: {when: out/state.npz}}\n"
    config = "config: {output_dir: out, steps: 60, pause: 0.05}\n"
    started = study.submit(f"framework: jax\n{config}{resume}")
    study.kill_once(started, "out/state.npz")
    study.end(started)
    for rank in (0, 1):
        assert f"ranks 2, this is {rank}" in study.logs(1)
    step = re.search(r"restored out/state.npz, step (\d)0\n", study.logs(2))
    assert step is not None
    assert f"\nstep {step[1]}1: error" in study.logs(2)
    assert met(study)

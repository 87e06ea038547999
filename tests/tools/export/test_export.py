"""``hpcrun export`` as it is typed."""

from __future__ import annotations

import hashlib
import io
import json
import os
import resource
import signal
import subprocess
import tarfile
import time
from pathlib import Path

import pytest

from hpcrun.state import files as state_files
from hpcrun.submission.code import code_files
from hpcrun.submission.code.code_files import CodeScope
from tests.support.command import hpcrun, start
from tests.support.experiment import Experiment, path_with, slurm_shim

VERSIONS = {"python": "3.11.2", "torch": "2.13.0", "hpcrun": "0"}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run 1 completed in two attempts, run 2 runs."""
    slurm_shim(tmp_path / "shim", squeue="100_2|RUNNING|None|node1|N/A\n")
    monkeypatch.setenv("PATH", path_with(tmp_path / "shim"))
    study = Experiment(tmp_path / "root")
    paths = study.submit((1, 2), swept={n: {"config.lr": n / 1000} for n in (1, 2)})
    paths.package.write_bytes(b"zip")
    freeze(study, {"train.py": "pass\n"})
    for run, attempt in ((1, 1), (1, 2), (2, 1)):
        found = study.start(run, attempt, job_id=f"100_{run}")
        study.metrics(run, attempt, [1, 2], loss=0.5 * run)
        found.deepspeed.write_text("{}")
        (found.directory / "telemetry-node1.jsonl").write_text('{"time": 1, "cpu": 7}\n')
        state_files.append(found.session, {"event": "started", "versions": VERSIONS})
        study.log(run, attempt, 0, "step 1\n")
        checkpoint = study.run(run).checkpoint(2, attempt)
        checkpoint.mkdir(parents=True)
        (checkpoint / "weights.pt").write_bytes(b"w" * 1000)
    paths.batch_log("100_1").write_text("attempt 1 of study/1\n")
    study.end(1, 1, outcome="failed", kind="rank_crash", message="x")
    study.end(1, 2)
    return tmp_path / "root"


def freeze(study: Experiment, files: dict[str, str]) -> None:
    """The archive of code that the factory's submission names."""
    study.paths.code.mkdir()
    with tarfile.open(study.paths.code / "abc.tar.gz", "w:gz") as archive:
        for name, text in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text.encode()))


def names(archive: Path) -> list[str]:
    with tarfile.open(archive) as tar:
        return tar.getnames()


def test_what_is_in_it(root: Path, tmp_path: Path) -> None:
    done = hpcrun("export", "-o", str(tmp_path / "a.tar.gz"), root=root)
    assert done.returncode == 0, done.stderr
    assert "1 run of 2 not over: exported as of now" in done.stderr
    attempts = [
        f"study/runs/{attempt}/{name}"
        for attempt in ("1/attempts/1", "1/attempts/2", "2/attempts/1")
        for name in ("deepspeed.json", "metrics.jsonl", "session.jsonl", "telemetry-node1.jsonl")
    ]
    assert sorted(names(tmp_path / "a.tar.gz")) == sorted(
        [
            *(f"study/{name}" for name in ("README.txt", "SHA256SUMS", "results.csv")),
            *(f"study/{name}" for name in ("versions.json", "code/abc.tar.gz")),
            *(f"study/configurations/{run}.json" for run in (1, 2)),
            *(f"study/submissions/1/{name}" for name in ("plan.json", "submission.json")),
            *(f"study/submissions/1/{name}" for name in ("journal.jsonl", "hpcrun.zip")),
            "study/submissions/1/script-0.sbatch",
            *("study/runs/1/intent.json", "study/runs/1/ledger.jsonl", "study/runs/2/ledger.jsonl"),
            *attempts,
        ]
    )
    done = hpcrun("export", "study/1", "--logs", "-o", str(tmp_path / "b.tgz"), root=root)
    logs = [name for name in names(tmp_path / "b.tgz") if name.endswith(".log")]
    assert logs == [
        "study/runs/1/attempts/1/rank-00000.log",
        "study/runs/1/attempts/2/rank-00000.log",
        "study/submissions/1/slurm-100_1.log",
    ]
    assert not any("runs/2/" in name for name in names(tmp_path / "b.tgz"))


def test_unpacked_it_is_read_as_any_experiment(root: Path, tmp_path: Path) -> None:
    hpcrun("export", "-o", str(tmp_path / "a.tar.gz"), root=root)
    with tarfile.open(tmp_path / "a.tar.gz") as archive:
        archive.extractall(tmp_path / "new", filter="data")
    there = tmp_path / "new" / "study"
    checked = subprocess.run(
        ["sha256sum", "--check", "--strict", "SHA256SUMS"],
        cwd=there,
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stderr
    assert checked.stdout.count(": OK\n") == len(names(tmp_path / "a.tar.gz")) - 1
    before, after = (
        hpcrun("results", "study", "--format", "csv", root=place).stdout
        for place in (root, tmp_path / "new")
    )
    assert before == after == (there / "results.csv").read_text()
    configuration = json.loads((there / "configurations" / "2.json").read_text())
    assert configuration["config"]["lr"] == 0.002
    versions = json.loads((there / "versions.json").read_text())
    assert versions["attempts"]["1/2"] == VERSIONS
    assert versions["submissions"]["1"]["code"]["digest"] == "abc"
    readme = (there / "README.txt").read_text()
    assert "study: runs 1-2, exported by hpcrun without checkpoints and logs." in readme
    assert "code/abc.tar.gz, in it study.yaml\n    hpcrun submit /home/someone/study.yaml" in readme


def test_equal_files_give_equal_bytes(root: Path, tmp_path: Path) -> None:
    digests = set()
    for name in ("a.tar.gz", "b.tar.gz"):
        hpcrun("export", "-o", str(tmp_path / name), root=root, env={"TZ": name})
        digests.add(hashlib.sha256((tmp_path / name).read_bytes()).hexdigest())
    assert len(digests) == 1


def test_a_record_that_is_a_link_costs_what_it_would_have_told(root: Path, tmp_path: Path) -> None:
    session = root / "study" / "runs" / "1" / "attempts" / "1" / "session.jsonl"
    session.unlink()
    session.symlink_to(session.name)
    done = hpcrun("export", "-o", tmp_path / "all.tar.gz", root=root)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
    with tarfile.open(tmp_path / "all.tar.gz") as archive:
        stream = archive.extractfile("study/versions.json")
        assert stream is not None
        assert json.load(stream)["attempts"] == {"1/2": VERSIONS, "2/1": VERSIONS}


def test_dry_run_and_json_name_the_same_files(root: Path, tmp_path: Path) -> None:
    target = tmp_path / "a.tar.gz"
    text = hpcrun("export", "--dry-run", "-o", str(target), root=root).stdout
    dry = json.loads(hpcrun("export", "--dry-run", "--json", "-o", str(target), root=root).stdout)
    assert not target.exists()
    assert [line.split() for line in text.splitlines()] == [
        [str(one["bytes"]), one["name"]] for one in dry["files"]
    ]
    real = json.loads(hpcrun("export", "--json", "-o", str(target), root=root).stdout)
    sums = {"name": "study/SHA256SUMS"}
    assert [one["name"] for one in real["files"]] == [one["name"] for one in [*dry["files"], sums]]
    assert all(len(one["sha256"]) == 64 for one in real["files"])


def test_secrets_stay_out(tmp_path: Path) -> None:
    study = Experiment(tmp_path)
    spec = {
        "environment": {"secrets_file": "/home/someone/private/keys", "setup": ["A_TOKEN=1 x"]},
        "config": {"hub_token": "abc", "tokens": "7"},
    }
    study.submit(spec=spec, job_id=None)
    freeze(study, {"train.py": "pass\n", "private/keys": "K=secret\n"})
    done = hpcrun("export", "-o", str(tmp_path / "a.tar.gz"), root=tmp_path)
    assert "abc.tar.gz, because it holds environment.secrets_file (private/keys)" in done.stderr
    assert "study/code/abc.tar.gz" not in names(tmp_path / "a.tar.gz")
    assert "config.hub_token looks like a secret, and its value is in the archive" in done.stderr
    assert "setup: A_TOKEN looks like a secret" in done.stderr
    assert "config.tokens" not in done.stderr


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("a.zip", "a.zip: accepted is the name of a .tar.gz"),
        ("there.tar.gz", "there.tar.gz: it is there already\n\nhint: --force replaces it"),
        ("no/a.tar.gz", "a.tar.gz: there is no directory"),
    ],
)
def test_wrong_targets(root: Path, tmp_path: Path, target: str, message: str) -> None:
    (tmp_path / "there.tar.gz").write_text("mine")
    done = hpcrun("export", "-o", str(tmp_path / target), root=root)
    assert done.returncode == 2
    assert message in done.stderr
    assert (tmp_path / "there.tar.gz").read_text() == "mine"
    if target == "there.tar.gz":
        again = hpcrun("export", "--force", "-o", str(tmp_path / target), root=root)
        assert again.returncode == 0
        assert "study/README.txt" in names(tmp_path / target)


def test_two_experiments_of_one_name(root: Path, tmp_path: Path) -> None:
    Experiment(tmp_path / "other").submit(job_id=None)
    other = str(tmp_path / "other" / "study")
    done = hpcrun("export", "study", other, "-o", str(tmp_path / "a.tar.gz"), root=root)
    assert done.returncode == 2
    assert "two of these experiments have one name (study, study)" in done.stderr


def test_a_full_disk_leaves_nothing(root: Path, tmp_path: Path) -> None:
    """A limit on the size of files stands for the disk: the write fails in the same place."""
    (tmp_path / "out").mkdir()
    log = Experiment(root).run(1).attempt(1).rank_log(0)
    log.write_bytes(os.urandom(1 << 20))
    done = hpcrun(
        *("export", "--logs", "-o", tmp_path / "out/a.tar.gz"),
        root=root,
        env={"PYTHONDONTWRITEBYTECODE": "1"},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 18, 1 << 18)),
    )
    assert done.returncode == 1
    assert "File too large" in done.stderr
    assert list((tmp_path / "out").iterdir()) == []


def test_ctrl_c_leaves_nothing(root: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    log = Experiment(root).run(1).attempt(1).rank_log(0)
    log.write_bytes(os.urandom(1 << 20) * 64)
    process = start("export", "--logs", "-o", str(out / "a.tar.gz"), root=root)
    deadline = time.monotonic() + 30
    while not list(out.iterdir()) and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert (process.returncode, said.splitlines()[-1]) == (130, "interrupted")
    assert list(out.iterdir()) == []


def test_an_archive_beside_the_code_is_no_code(root: Path, tmp_path: Path) -> None:
    """Nor is the code said to have changed by it at the next submission."""
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text("pass\n")
    for name, inside in (("own.tar.gz", "README.txt"), ("data.tgz", "study/README.txt")):
        with tarfile.open(code / name, "w:gz") as archive:
            archive.addfile(tarfile.TarInfo(inside))
    (code / "broken.tar.gz").write_bytes(b"\x1f\x8b\x08 and nothing that follows")
    before = code_files.find(CodeScope(code)).paths
    assert before == ["broken.tar.gz", "data.tgz", "own.tar.gz", "train.py"]
    for name in ("study.tar.gz", "again.tgz"):
        assert hpcrun("export", "study", "-o", str(code / name), root=root).returncode == 0
    assert code_files.find(CodeScope(code)).paths == before

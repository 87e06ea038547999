"""Runs of the local executor whose checkpoints go to a real S3 server, and come back from it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpcrun.features.object_storage import copies, copy_records
from hpcrun.features.object_storage.copy_records import COPIED, FETCHED, NOT_COPIED, TROUBLE
from hpcrun.state import manifest, session_log
from tests.features.object_storage.conftest import Storage
from tests.support.place import REPOSITORY, Place
from tests.support.s3_server import S3Server
from tests.support.waiting import until

pytest.importorskip("torch")
pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def running(s3: S3Server, bucket: Storage) -> Iterator[S3Server]:
    yield s3
    if not s3.is_running:
        s3.start()


def _variables(storage: Storage, **more: str) -> dict[str, str]:
    import fsspec

    assert storage.server is not None
    site = Path(fsspec.__file__).parents[1]
    paths = {"PYTHONPATH": os.pathsep.join([str(REPOSITORY), str(site)])}
    return {**storage.server.variables, "AWS_EC2_METADATA_DISABLED": "true", **paths, **more}


def _submit(place: Place, storage: Storage, steps: int = 40, **block: Any) -> None:
    asked = {"to": storage.url, "options": storage.options, **block}
    checkpoint = {"every": 10, "keep": 2}
    place.submit_counting(steps, checkpoint=checkpoint, object_storage=asked)


def _records(place: Place, event: str) -> list[copy_records.Record]:
    return [one for one in copy_records.read_records(place.run) if one["event"] == event]


def _restored(place: Place, attempt: int) -> int | None:
    return session_log.read(place.run.attempt(attempt)).restored_step


def _stop_after_copy(place: Place, storage: Storage, step: int) -> str:
    """Start the run, end it once a copy of that step is on record; what the supervisor said."""
    supervisor = place.start(**_variables(storage))
    until(lambda: any(one["step"] >= step for one in _records(place, COPIED)), "copied", 90)
    os.kill(supervisor.pid, signal.SIGTERM)
    return place.end(supervisor, 90)[1]


def test_a_run_goes_on_from_a_copy_where_the_root_has_lost_its_checkpoints(
    place: Place, bucket: Storage
) -> None:
    _submit(place, bucket, steps=600)
    _stop_after_copy(place, bucket, 10)
    newest = copy_records.copies(copy_records.read_records(place.run))[0]["step"]
    assert newest >= 10
    shutil.rmtree(place.run.checkpoints)
    # A lost root, and fewer steps to do from now on.
    _submit(place, bucket, steps=newest + 20)
    code, said = place.supervise(120, **_variables(bucket))
    assert code == 0, said
    [fetched] = _records(place, FETCHED)
    assert fetched["step"] == newest == _restored(place, 2)
    assert place.steps(2) == list(range(newest + 1, newest + 21))
    names = [path.name for path, _ in manifest.complete(place.run.checkpoints)]
    made = copy_records.copies(copy_records.read_records(place.run))
    assert made[0]["checkpoint"] == names[0]
    assert made[0]["step"] == newest + 20
    assert _records(place, NOT_COPIED) == [] or _records(place, NOT_COPIED)[-1]["attempt"] == 1


def test_without_the_store_a_run_that_lost_all_does_not_begin_at_0(
    place: Place, bucket: Storage, running: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    _submit(place, bucket, steps=600)
    _stop_after_copy(place, bucket, 10)
    shutil.rmtree(place.run.checkpoints)
    wrong = {"AWS_SECRET_ACCESS_KEY": "another"}
    code, said = place.supervise(120, **_variables(bucket, **wrong))
    assert code != 0
    assert _restored(place, 2) is None
    cause = place.cause(2)
    assert cause["kind"] == "launch"
    assert "the root has lost step-" in cause["message"], said
    assert "AWS_SECRET_ACCESS_KEY belong into environment.secrets_file" in cause["message"]


@pytest.mark.parametrize("broken", ["credentials", "bucket", "server"])
def test_training_ends_well_where_nothing_can_be_copied(
    place: Place, bucket: Storage, running: S3Server, broken: str
) -> None:
    variables = _variables(bucket)
    block: dict[str, Any] = {"wait": "00:00:05"}
    if broken == "credentials":
        variables["AWS_SECRET_ACCESS_KEY"] = "another"
    elif broken == "bucket":
        block["to"] = "s3://nobodys-bucket/x"
    else:
        running.kill()
    _submit(place, bucket, **block)
    code, said = place.supervise(120, **variables)
    assert code == 0, said
    assert place.steps(1)[-1] == 40
    assert _records(place, COPIED) == []
    assert len(_records(place, NOT_COPIED)) == 1
    assert "step-00000040-a1" in _records(place, NOT_COPIED)[0]["message"]
    told = _records(place, TROUBLE)
    expected = {
        "credentials": "PermissionError",
        "bucket": "make the bucket",
        "server": "EndpointConnectionError",
    }
    assert any(expected[broken] in one["message"] for one in told), told
    assert len(told) == 1


def test_a_server_that_is_killed_in_the_middle_of_a_copy_and_comes_back(
    place: Place, bucket: Storage, running: S3Server
) -> None:
    running.pause()
    _submit(place, bucket)
    supervisor = place.start(**_variables(bucket))
    until(lambda: place.run.checkpoint(10, 1).is_dir(), "saved", 90)
    running.kill()
    running.start()
    code, said = place.end(supervisor, 120)
    assert code == 0, said
    made = copy_records.copies(copy_records.read_records(place.run))
    assert made[0]["step"] == 40
    assert _records(place, NOT_COPIED) == []


def test_what_was_not_copied_is_copied_by_hand(
    place: Place, bucket: Storage, running: S3Server
) -> None:
    running.kill()
    _submit(place, bucket, wait="00:00:02")
    code, said = place.supervise(120, **_variables(bucket))
    assert code == 0, said
    assert [*bucket.objects.rglob("manifest.json")] == []
    running.start()
    number = place.run.directory.name
    words = ["once", str(place.submission.directory), "--run", number]
    done = subprocess.run(
        [sys.executable, "-m", copies.PROGRAM, *words],
        env={**os.environ, **_variables(bucket)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    names = sorted(path.parent.name for path in bucket.objects.rglob("manifest.json"))
    assert names == ["step-00000030-a1", "step-00000040-a1"]

"""`bench.on_gpu` without a GPU: all its parts, their record, and what a machine needs for it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

from bench.on_gpu import packages
from bench.on_gpu.record import Part, Record
from tests.support.needs_tool import needs_tool
from tests.support.place import REPOSITORY

THOROUGH = bool(os.environ.get("HPCRUN_THOROUGH"))


def _on_gpu(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "bench.on_gpu", *map(str, arguments)]
    return subprocess.run(argv, cwd=REPOSITORY, capture_output=True, text=True, check=False)


@needs_tool("perf")
@pytest.mark.training
@pytest.mark.timeout(900)
def test_all_parts_on_processors(tmp_path: Path) -> None:
    """`profile` and `tune`, which have tests of their own with real ranks, by hand alone."""
    pytest.importorskip("deepspeed", reason="trains")
    wanted = ["training", "speed", "out of memory", "loop", "fp8", "save", "fully_shard"]
    wanted += ["profile", "tune"] if THOROUGH else []
    done = _on_gpu("--output", tmp_path, "--only", ",".join(wanted))
    found = json.loads((tmp_path / "on_gpu-cpu.json").read_text())
    states = {one["part"]: one["state"] for one in found["parts"]}
    assert states == {**dict.fromkeys(wanted, "done"), "fp8": "left out"}, done.stderr
    assert done.returncode == 0
    assert "no figure below is one of a GPU" in (tmp_path / "on_gpu-cpu.txt").read_text()
    parts: dict[str, dict[str, Any]] = {one["part"]: one for one in found["parts"]}
    (stage,) = parts["training"]["stages"]
    assert stage["same"]
    assert stage["causes"] == ["rank_crash", None]
    assert stage["restored_step"] > 0
    assert set(parts["training"]["report"]) == {"zero/0", "zero/1"}
    cases = {one["name"]: one for one in parts["speed"]["cases"]}
    assert set(cases) == {"tiny as it is", "tiny compiled", "tiny ZeRO 2"}
    assert all(min(one["step_seconds"]) > 0 for one in cases.values())
    assert [one["stage"] for one in parts["speed"]["estimates"]] == [1, 2]
    assert parts["out of memory"]["stand_in"]
    told = [(one["micro_batch"], one["kind"]) for one in parts["out of memory"]["attempts"]]
    assert told == [(4, "out_of_memory"), (2, None)]
    assert "raised OutOfMemoryError: CUDA out of memory" in parts["out of memory"]["why"]
    assert parts["loop"]["same"]
    assert len(parts["loop"]["turns"]) == 4
    assert parts["save"]["plain_save"] > 0
    assert {len(parts[name]["blocked"]) for name in ("save", "fully_shard")} == {2}
    sharded = parts["fully_shard"]
    assert [one["name"] for one in sharded["cases"]] == ["tiny as it is", "tiny compiled"]
    assert all(min(one["step_seconds"]) > 0 for one in sharded["cases"])
    # In bf16, of the same weights and tokens.
    for one in sharded["cases"]:
        assert one["losses"] == pytest.approx(cases[one["name"]]["losses"], rel=1e-2)
    assert all("; ZeRO 1: " in told for told in sharded["lines"][:2])


def test_without_a_gpu_nothing_is_written_among_the_results() -> None:
    pytest.importorskip("deepspeed", reason="is asked for first")
    for words in ((), ("--output", REPOSITORY / "bench" / "results")):
        done = _on_gpu(*words)
        assert done.returncode == 1
        assert "there is no GPU here" in done.stderr
    assert not (REPOSITORY / "bench" / "results" / "on_gpu-cpu.json").exists()


def test_what_was_found_is_on_disk_at_once_and_a_part_that_fails_ends_itself(
    tmp_path: Path,
) -> None:
    def written() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads((tmp_path / "r.json").read_text())["parts"]
        return found

    def fails(part: Part) -> None:
        part.note(figure=7)
        part.say("seven")
        assert (written()[0]["figure"], written()[0]["state"]) == (7, "begun")
        raise ValueError("no such kernel")

    def is_cut(part: Part) -> None:
        while True:
            _ = part.left

    def leaves(part: Part) -> None:
        raise SystemExit(143)

    record = Record(tmp_path, "r", {"gpu": "none"}, 60)
    record.parts = [Part("one", "", 5), Part("two", "", 0.1), Part("three", "", 5)]
    record.run(record.parts[0], fails)
    record.run(record.parts[1], is_cut)
    with pytest.raises(SystemExit):
        record.run(record.parts[2], leaves)
    assert [one["state"] for one in written()] == ["failed", "cut", "cut"]
    assert [one["error"] for one in written()][:2] == [
        "ValueError: no such kernel",
        "its 0 s were over",
    ]
    record.seconds = 1
    record.run(record.parts[1], lambda part: None)
    assert "the 1 s of all parts were over" in (tmp_path / "r.txt").read_text()


def test_what_is_needed_is_what_the_project_says() -> None:
    text = (REPOSITORY / "pyproject.toml").read_text()
    listed = re.search(r"^dependencies = \[(.*?)^\]", text, re.DOTALL | re.MULTILINE)
    extra = re.search(r"^train = \[(.*?)\]$", text, re.MULTILINE)
    assert listed
    assert extra
    names = re.findall(r'"([a-z0-9-]+)', listed[1]) + re.findall(r'"([a-z0-9-]+)', extra[1])
    assert {*packages.ROOTS} == {*names} - {*packages.SUPPLIED}


def test_what_is_lacking_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("deepspeed", reason="nothing is lacking then")
    assert packages.lacking() == []
    versions = {"omegaconf": None, "pydantic": "1.10.2", "torch": None}
    known = packages._version
    monkeypatch.setattr(
        packages, "_version", lambda name: versions[name] if name in versions else known(name)
    )
    assert packages.lacking() == ["torch", "omegaconf", "pydantic>=2.0.0"]
    told = packages.told(packages.lacking())
    assert "lacks torch, omegaconf, pydantic>=2.0.0" in told
    assert "--gather wheels" in told


def test_wheels_are_installed_where_something_lacks_and_in_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a package needs is known once it is there; what is there already is left alone."""
    _wheel(tmp_path, "first_thing", "Requires-Dist: second-thing>=1")
    _wheel(tmp_path, "second_thing", "Requires-Dist: packaging")
    _wheel(tmp_path, "packaging", "")
    monkeypatch.setattr(packages, "ROOTS", ("first-thing",))
    monkeypatch.setattr(packages, "OPTIONAL", ())
    monkeypatch.setattr(packages, "SUPPLIED", ())
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    said: list[str] = []
    site = packages.install(tmp_path, said.append)
    assert said == [f"installed in {site}: first-thing, second-thing"]
    assert (site / "first_thing.py").exists()
    assert (site / "second_thing.py").exists()
    assert not (site / "packaging.py").exists()


def _wheel(directory: Path, name: str, needs: str) -> None:
    about = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(directory / f"{name}-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{name}.py", "")
        wheel.writestr(
            f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{needs}\n"
        )
        wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(f"{about}/RECORD", "")

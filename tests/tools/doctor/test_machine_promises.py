"""Storage, Python, compiler and this machine, judged from facts."""

from __future__ import annotations

from typing import Any

import pytest

from hpcrun.tools.doctor import machine_promises
from hpcrun.tools.doctor.machine_promises import PythonFacts, StorageFacts
from hpcrun.tools.doctor.promise import FAILS, LESS, UNKNOWN, WORKS, JudgedPromise, counts

GOOD = {"path": "/lustre/ann", "kind": "lustre", "is_remote": True, "sync": 0.004, "write": 1e9}
GOOD |= {"free": 10**12}


def _by_name(judged: list[JudgedPromise]) -> dict[str, tuple[str, str, str]]:
    return {
        one.name: (one.judgement.verdict, one.judgement.found, one.judgement.change)
        for one in judged
    }


@pytest.mark.parametrize(
    ("facts", "name", "verdict", "words"),
    [
        ({}, "root", WORKS, "/lustre/ann, 1.0 TB free"),
        ({}, "shared root", WORKS, "lustre"),
        ({}, "storage speed", WORKS, "fsync and rename take 4 ms, one file with 1.0 GB/s"),
        ({"error": "/x cannot be written by you", "sync": None}, "root", FAILS, "cannot be wr"),
        ({"renames": False}, "root", FAILS, "POSIX"),
        ({"free": 10**9}, "root", LESS, "has 1.0 GB left"),
        ({"kind": "tmpfs", "is_remote": False}, "shared root", FAILS, "memory (tmpfs)"),
        ({"kind": "xfs", "is_remote": False}, "shared root", UNKNOWN, "a disk of this machine"),
        ({"sync": 0.5}, "storage speed", LESS, "take 500 ms"),
        ({"write": 2e7}, "storage speed", LESS, "one file with 20.0 MB/s"),
        ({"sync": None, "error": "gone"}, "storage speed", UNKNOWN, "not measured: gone"),
    ],
)
def test_storage(facts: dict[str, Any], name: str, verdict: str, words: str) -> None:
    judged = machine_promises.storage(StorageFacts(**{**GOOD, **facts}), [], on_cluster=True)
    found = _by_name(judged)[name]
    assert found[0] == verdict, found
    assert words in found[1]
    assert found[2] or verdict == WORKS or name == "storage speed"


def test_storage_of_runs_on_this_machine_and_better_places() -> None:
    facts = StorageFacts("/tmp/x", "ext4", sync=0.004, write=1e9)
    judged = machine_promises.storage(facts, [StorageFacts(**GOOD)], on_cluster=False)
    found = _by_name(judged)
    assert found["shared root"][:2] == (WORKS, "runs are on this machine (ext4)")
    assert "; /lustre/ann: fsync and rename take 4 ms" in found["storage speed"][1]


LIBRARIES = {"torch": "2.13.0+cpu", "deepspeed": "0.19.8"}
TOOLS: dict[str, str | None] = {"c++": "/bin/g++", "ninja": "/n", "nvcc": None, "Python.h": "/p"}
PYTHON = PythonFacts("/venv/bin/python", "3.11.2", LIBRARIES, TOOLS)
OWN: dict[str, str | None] = {"submitit": "1.5.4", "omegaconf": "2.4.0"}


def test_python_that_has_all() -> None:
    found = _by_name(machine_promises.python(PYTHON, OWN, gpus=False))
    assert {verdict for verdict, *_ in found.values()} == {WORKS}
    assert found["job's Python"][1].endswith("Python 3.11.2: torch 2.13.0+cpu, deepspeed 0.19.8")
    assert found["compiler"][1] == "g++, ninja and Python.h are on this machine"


@pytest.mark.parametrize(
    ("change", "name", "verdict", "words", "advice"),
    [
        ({"libraries": {"torch": None}}, "job's Python", LESS, "functions do not", "pip install"),
        (
            {"libraries": {"torch": "1.13.1", "deepspeed": "0.19.8"}},
            "job's Python",
            LESS,
            "torch 1.13.1",
            "tested with torch 2.13, deepspeed 0.19",
        ),
        ({"error": "/x is not there"}, "job's Python", FAILS, "/x is not there", "--python PATH"),
        (
            {"libraries": None, "unchecked": "/x belongs to bob"},
            "job's Python",
            UNKNOWN,
            "belongs to bob",
            "",
        ),
        ({"tools": None}, "compiler", UNKNOWN, "not looked for", ""),
        ({"tools": {**TOOLS, "c++": None}}, "compiler", LESS, "no c++", "module with g++"),
        ({"tools": {**TOOLS, "Python.h": None}}, "compiler", LESS, "no Python.h", "python3-dev"),
        ({"tools": {**TOOLS, "ninja": None}}, "compiler", LESS, "no ninja", "pip install ninja"),
    ],
)
def test_python(change: dict[str, Any], name: str, verdict: str, words: str, advice: str) -> None:
    facts = PythonFacts(**{**vars(PYTHON), **change})
    found = _by_name(machine_promises.python(facts, OWN, gpus=False))[name]
    assert found[0] == verdict, found
    assert words in found[1]
    assert advice in found[2]


def test_gpus_need_nvcc() -> None:
    found = _by_name(machine_promises.python(PYTHON, OWN, gpus=True))["compiler"]
    assert found[0] == LESS
    assert "no nvcc" in found[1]


def test_libraries_of_hpcrun() -> None:
    def judged(**own: str | None) -> tuple[str, str, str]:
        return _by_name(machine_promises.python(PYTHON, {**OWN, **own}, gpus=False))["libraries"]

    assert judged(submitit=None)[0] == FAILS
    assert judged(omegaconf="2.3.1")[0] == WORKS
    assert judged(omegaconf="2.1.0")[0] == LESS
    assert judged(submitit="1.6.0") == (
        LESS,
        "submitit 1.6.0, omegaconf 2.4.0",
        "hpcrun is tested with submitit 1.5",
    )


def test_this_machine() -> None:
    judged = machine_promises.machine(8, 0, has_proc=True)
    assert counts(judged) == "2 work"
    judged = machine_promises.machine(8, 2, has_proc=False)
    assert counts(judged) == "1 works, 1 does not"
    assert counts(machine_promises.not_known_here()) == "3 are not known"

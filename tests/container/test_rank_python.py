"""The words that put a command into a run's container."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from hpcrun.container import rank_python
from hpcrun.container.rank_python import RankPython
from hpcrun.container.runtimes import Mount
from hpcrun.state.environment.environment_block import Container
from tests.container import standins


def test_without_a_container_it_is_this_python() -> None:
    assert RankPython().command("-c", "pass") == [sys.executable, "-c", "pass"]
    assert not RankPython().is_container


def test_the_runtime_is_found_on_the_node() -> None:
    container = Container(image="/i", runtime="charliecloud", python="/opt/bin/python")
    given = {"PYTHONPATH": "/mine", "B": "1"}
    found = rank_python.of_container(container, [Mount("/d", "/d", True)], given, "/r/hpcrun.zip")
    assert found.prefix[:3] == (sys.executable, "-m", "hpcrun.run.enter")
    assert found.prefix[4] == "--"
    told = json.loads(found.prefix[3])
    assert told["mounts"] == [["/d", "/d", True]]
    assert told["given"] == ["B", "PYTHONPATH"]
    assert Container(**told["container"]) == container
    words = ["env", "PYTHONPATH=/r/hpcrun.zip:/mine", "/opt/bin/python", "-c", "pass"]
    assert found.command("-c", "pass")[5:] == words
    assert found.is_anywhere


def test_pyxis_has_srun_start_it() -> None:
    container = Container(image="x", runtime="pyxis", python="python3")
    found = rank_python.of_container(container, [Mount("/d", "/d")], {}, "/r/hpcrun.zip")
    assert found.command("-c", "pass") == [
        *("env", "PYTHONPATH=/r/hpcrun.zip", "python3", "-c", "pass")
    ]
    assert "/d:/d" in standins.read_pyxis([*found.srun]).container_mounts
    assert found.is_container
    assert not found.is_anywhere


def test_an_image_of_one_file_is_told_apart(tmp_path: Path) -> None:
    image = tmp_path / "i.sqfs"
    image.write_bytes(b"x" * 2048)
    os.utime(image, (1e9, 1e9))
    before = rank_python.image_facts(Container(image=str(image)))
    assert "2,048 bytes" in before["container image"]
    image.write_bytes(b"x" * 2048)
    assert rank_python.image_facts(Container(image=str(image))) != before
    assert rank_python.image_facts(Container(image=str(tmp_path))) == {}
    assert rank_python.image_facts(Container(image="docker://x")) == {}

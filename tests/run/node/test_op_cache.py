"""Which of DeepSpeed's operators a run needs, and the cache of compiled ones."""

from __future__ import annotations

import os
import sys
import threading
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from hpcrun.container.rank_python import RankPython
from hpcrun.errors import HpcrunError
from hpcrun.run.node import op_cache
from hpcrun.state import permissions
from hpcrun.state.spec.blocks import SpecBlocks
from tests.support.nfs import Host

SHARED = "ShareMemCommBuilder"
CPU_ADAM = "CPUAdamBuilder"
FUSED = "FusedAdamBuilder"
OFFLOADED = {"offload_optimizer": {"device": "cpu"}}
ADAMW = {"type": "AdamW", "params": {"lr": 1.0}}
TORCH_ADAM = {"type": "adam", "params": {"torch_adam": True}}


@pytest.mark.parametrize(
    ("gpus", "deepspeed", "builders"),
    [
        (0, None, [SHARED]),
        (0, {}, [SHARED]),
        (8, {}, []),
        (0, {"optimizer": {"type": "SGD"}}, [SHARED]),
        (0, {"optimizer": ADAMW}, [SHARED, FUSED]),
        (8, {"optimizer": ADAMW}, [FUSED]),
        (8, {"optimizer": {"type": "Adam"}}, [FUSED]),
        (8, {"optimizer": {"type": "Adam", "params": None}}, [FUSED]),
        (0, {"optimizer": TORCH_ADAM}, [SHARED]),
        (8, {"optimizer": ADAMW, "zero_optimization": OFFLOADED}, [CPU_ADAM]),
        (0, {"optimizer": ADAMW, "zero_optimization": OFFLOADED}, [SHARED, CPU_ADAM]),
        (8, {"zero_optimization": {"offload_optimizer": {"device": "none"}}}, []),
        (8, {"zero_optimization": None, "optimizer": None}, []),
    ],
)
def test_what_a_configuration_needs(
    gpus: int, deepspeed: dict[str, Any] | None, builders: list[str]
) -> None:
    spec = SpecBlocks({"resources": {"gpus_per_node": gpus}, "deepspeed": deepspeed})
    assert op_cache.needed(spec) == builders


def test_the_key_says_what_was_compiled() -> None:
    pytest.importorskip("deepspeed")
    first = op_cache.key([SHARED])
    assert first is not None
    assert first == op_cache.key([SHARED])
    assert first != op_cache.key([SHARED, FUSED])
    assert len(first) == 20


def test_an_environment_behind_a_link_compiles_for_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The compiler is given its paths as they are spelled, and ninja compares the words."""
    pytest.importorskip("deepspeed")
    first = op_cache.key([SHARED])
    link = tmp_path / "site-packages"
    link.symlink_to(metadata.distribution("torch").locate_file(""))
    monkeypatch.syspath_prepend(str(link))
    assert op_cache.key([SHARED]) != first


def test_without_deepspeed_there_is_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", missing)
    assert op_cache.key([SHARED]) is None


def _builder(monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    """What is run in place of DeepSpeed's builders."""
    monkeypatch.setattr(op_cache, "_BUILD", program)


def _names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


COMPILES = """
import os, pathlib, sys
directory = pathlib.Path(os.environ["TORCH_EXTENSIONS_DIR"], "deepspeed_shm_comm")
directory.mkdir()
(directory / "x.so").write_text(" ".join(sys.argv[1:]))
"""


def test_compiled_once_then_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "deep" / "cache"
    _builder(monkeypatch, COMPILES)
    op_cache.build(cache, "key", ["A", "B"])
    product = cache / "key" / "deepspeed_shm_comm" / "x.so"
    assert product.read_text() == "A B"
    assert _names(cache) == ["key"]
    _builder(monkeypatch, "raise SystemExit(1)")
    op_cache.build(cache, "key", ["A", "B"])
    op_cache.copy(cache, "key", tmp_path / "own")
    own = tmp_path / "own" / "deepspeed_shm_comm" / "x.so"
    assert own.stat().st_mtime_ns == product.stat().st_mtime_ns


def test_the_experiment_compiles_for_itself_where_the_roots_cache_is_anothers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared, own = caches = tmp_path / "shared" / "cache", tmp_path / "own" / "cache"
    assert permissions.usable_place(caches, "key") == shared
    (own / "key").mkdir(parents=True)
    assert permissions.usable_place(caches, "key") == own
    (shared / "key").mkdir()
    assert permissions.usable_place(caches, "key") == shared
    (shared / "key").chmod(0o777)
    assert permissions.usable_place(caches, "key") == own
    monkeypatch.setattr(op_cache.permissions, "trusted_users", lambda: frozenset({12345}))
    assert permissions.usable_place(caches, "key") == own
    assert permissions.usable_place(caches, "other") == own


@pytest.mark.timeout(30)
def test_a_fifo_among_the_operators_blocks_nobody(tmp_path: Path) -> None:
    (tmp_path / "key").mkdir()
    os.mkfifo(tmp_path / "key" / "x.so")
    with pytest.raises(OSError, match="a FIFO, not a regular file"):
        op_cache.copy(tmp_path, "key", tmp_path / "own")


def test_who_is_second_takes_what_the_first_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "key" / "other"
    _builder(monkeypatch, f"import os; os.makedirs({str(other)!r})")
    op_cache.build(tmp_path, "key", ["A"])
    assert _names(tmp_path) == ["key"]
    assert other.is_dir()


def test_a_compiler_that_fails_is_quoted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _builder(monkeypatch, "import sys; print('x.cpp:3: error: no g++'); print('z'); sys.exit(1)")
    with pytest.raises(HpcrunError) as caught:
        op_cache.build(tmp_path, "key", ["A", "B"])
    text = str(caught.value)
    assert text.startswith(
        "DeepSpeed's A, B do not compile on this node:\n    x.cpp:3: error: no g++"
    )
    assert "needs a C++ compiler and ninja" in text
    assert "z" in capsys.readouterr().out
    assert _names(tmp_path) == []


def test_a_compiler_that_was_killed_asks_for_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _builder(monkeypatch, "import sys; print('g++: fatal error: Killed signal'); sys.exit(1)")
    with pytest.raises(HpcrunError, match=r"resources\.mem"):
        op_cache.build(tmp_path, "key", ["A"])


def test_the_builders_come_from_the_jobs_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _builder(monkeypatch, f"import sys; sys.exit(sys.executable != {sys.executable!r})")
    op_cache.build(tmp_path, "key", ["A"])
    assert (tmp_path / "key").is_dir()


def test_the_key_is_that_of_the_compiler_and_the_libraries_not_of_an_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("deepspeed")
    first = op_cache.key([SHARED])
    monkeypatch.setattr(sys, "prefix", "/other/environment")
    assert op_cache.key([SHARED]) == first
    monkeypatch.setenv("CXX", "echo another compiler")
    assert op_cache.key([SHARED]) != first


def test_all_roots_of_a_user_share_what_was_compiled_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    _builder(monkeypatch, COMPILES)
    roots = [(tmp_path / name / "root", tmp_path / name / "own") for name in ("one", "two")]
    op_cache.provide(roots[0], "key", ["A"])
    _builder(monkeypatch, "raise SystemExit(1)")
    op_cache.provide(roots[1], "key", ["A"])
    products = [root / "key/deepspeed_shm_comm/x.so" for root, _ in roots]
    assert [path.read_text() for path in products] == ["A", "A"]
    assert products[0].stat().st_mtime_ns == products[1].stat().st_mtime_ns
    for cache in (op_cache.of_user(), *(root for root, _ in roots)):
        assert _names(cache) == ["key"]


def test_a_cache_that_anybody_may_write_is_not_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    planted = op_cache.of_user() / "key"
    planted.mkdir(parents=True)
    planted.chmod(0o777)
    _builder(monkeypatch, COMPILES)
    op_cache.provide((tmp_path / "root", tmp_path / "own"), "key", ["A"])
    assert (tmp_path / "root/key/deepspeed_shm_comm/x.so").read_text() == "A"
    assert _names(planted) == []


def test_who_comes_second_waits_and_compiles_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    begun = tmp_path / "begun"
    lines = f"""
import os, pathlib, time
with open({str(begun)!r}, "a") as stream:
    stream.write("x")
time.sleep(1.5)
pathlib.Path(os.environ["TORCH_EXTENSIONS_DIR"], "x.so").touch()
"""
    _builder(monkeypatch, lines)
    monkeypatch.setattr(op_cache, "_TOLD", 0.4)
    cache = tmp_path / "cache"
    threads = [
        threading.Thread(target=op_cache.build, args=(cache, "key", ["A"])) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert begun.read_text() == "x"
    assert _names(cache) == ["key"]
    said = capfd.readouterr().out
    assert "compiling DeepSpeed's A: minutes, but once" in said
    assert "s so far" in said
    assert "another process compiles DeepSpeed's operators" in said


@pytest.mark.parametrize("owner", [f"{os.uname().nodename}:999999999:1", "elsewhere:1:1", ""])
def test_a_lock_that_was_left_delays_nobody_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: str
) -> None:
    """Its process is gone, or is on another node and does not renew it."""
    _builder(monkeypatch, COMPILES)
    monkeypatch.setattr(op_cache, "_STALE", 0.5)
    (tmp_path / ".key.lock").write_text(owner)
    began = time.monotonic()
    op_cache.build(tmp_path, "key", ["A"])
    assert time.monotonic() - began < 20
    assert _names(tmp_path) == ["key"]


def test_who_waits_for_another_can_be_given_up(tmp_path: Path) -> None:
    (tmp_path / ".key.lock").write_text("elsewhere:1:1")
    with pytest.raises(HpcrunError, match="waiting for DeepSpeed's operators was given up"):
        op_cache.build(tmp_path, "key", ["A"], given_up=lambda: True)
    assert (tmp_path / ".key.lock").exists()


def test_how_far_ninja_is(tmp_path: Path) -> None:
    build = tmp_path / "deepspeed_shm_comm"
    build.mkdir()
    (build / "build.ninja").write_text("build a.o: compile x.cpp\nbuild b.so: link a.o\n")
    (build / "a.o").touch()
    assert op_cache._progress(tmp_path) == "1 of 2 files, "
    assert op_cache._progress(build) == ""


def test_what_another_node_has_just_compiled_is_found(
    two_hosts: tuple[Host, Host], monkeypatch: pytest.MonkeyPatch
) -> None:
    other, here = two_hosts
    _builder(monkeypatch, "raise SystemExit('nothing is to be compiled')")
    assert not (here / "key").exists()
    (other / "key").mkdir()
    assert not (here / "key").exists()
    op_cache.build(here.path, "key", ["A"])
    assert _names(here.path) == ["key"]
    # Who has compiled it too, meanwhile, learns at the rename that it is there.
    assert not (here / "late").exists()
    with op_cache._directory(here.path, "late") as temporary:
        (temporary / "x.so").touch()
        (other / "late").mkdir()
        (other / "late" / "x.so").touch()
    assert _names(here.path) == ["key", "late"]


def test_the_python_of_a_container_tells_its_own_key_or_why_it_does_not_start() -> None:
    builders = ["FusedAdamBuilder"]
    assert op_cache.key_in_container(RankPython(), builders) == op_cache.key(builders)
    assert op_cache.key_in_container(RankPython(), []) is None
    fails = RankPython(python=("sh", "-c", "echo no such image >&2; exit 3"))
    with pytest.raises(HpcrunError, match=r"does not start \(exit code 3\):\n *no such image"):
        op_cache.key_in_container(fails, builders)

"""Looking at the job's Python: real interpreters and scripts that behave like bad ones."""

from __future__ import annotations

import sys
import time
import venv
from pathlib import Path

import pytest

from hpcrun.ask_python import MARK
from hpcrun.errors import UsageError
from hpcrun.submission.python_probe import probe

TRAINS = dict.fromkeys(("torch", "deepspeed"), "a function entry")


def _program(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def _pretend(path: Path, version: str) -> str:
    answer = f'{{"executable": "/x", "version": "{version}", "torch": null, "deepspeed": null}}'
    return _program(path, f"echo noise; echo '{MARK}{answer}'")


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Python with nothing installed."""
    place = tmp_path_factory.mktemp("bare")
    venv.create(place, symlinks=True, with_pip=False)
    return str(place / "bin" / "python")


def test_this_python() -> None:
    found = probe(sys.executable)
    assert found.version == "{}.{}.{}".format(*sys.version_info[:3])
    assert found.facts["executable"]


def test_packages_are_found_without_importing_them(bare: str, tmp_path: Path) -> None:
    site = tmp_path / "site"
    for name, version in (("torch", "2.13.0"), ("deepspeed", "0.19.8")):
        (site / name).mkdir(parents=True)
        (site / name / "__init__.py").write_text("raise SystemExit('imported')\n")
        information = site / f"{name}-{version}.dist-info"
        information.mkdir()
        (information / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n")
    found = probe(bare, variables={"PYTHONPATH": str(site)}, needs=TRAINS)
    assert found.libraries["torch"] == "2.13.0"
    assert found.libraries["deepspeed"] == "0.19.8"


def test_a_directory_named_deepspeed_is_not_it(
    bare: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "deepspeed").mkdir()
    (tmp_path / "deepspeed" / "__init__.py").write_text("")
    (tmp_path / "site" / "deepspeed").mkdir(parents=True)
    variables = {"PYTHONPATH": str(tmp_path / "site")}
    assert probe(bare, variables=variables).libraries["deepspeed"] is None


def test_the_submitters_environment_does_not_help(
    bare: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "deepspeed.py").write_text("")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert probe(bare).libraries["deepspeed"] is None


def test_setup_lines_come_first(tmp_path: Path) -> None:
    place = tmp_path / "it's $(here)"
    place.mkdir()
    _pretend(place / "mypython", "3.12.1")
    setup = ["echo loading a module", f'export PATH="{tmp_path}/it\'s \\$(here):$PATH"']
    assert probe("mypython", setup=setup).version == "3.12.1"


def test_values_do_not_reach_the_shell(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not there"):
        probe(f"/nonexistent; touch {tmp_path}/owned", setup=["true"])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("setup", [(), ("true",)])
def test_one_that_is_not_there(setup: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match=r"environment\.python: /nonexistent/python") as caught:
        probe("/nonexistent/python", setup=setup)
    assert caught.value.hint


def test_one_that_is_no_program(tmp_path: Path) -> None:
    (tmp_path / "python").write_text("")
    with pytest.raises(UsageError, match="Permission denied"):
        probe(str(tmp_path / "python"))


def test_one_that_fails_says_why(tmp_path: Path) -> None:
    python = _program(tmp_path / "python", "echo libpython3.so: no such file >&2; exit 3")
    with pytest.raises(UsageError, match=r"exit code 3[\s\S]*libpython3\.so"):
        probe(python)


def test_setup_that_fails_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"after environment\.setup"):
        probe(sys.executable, setup=["exit 9"])


def test_setup_lines_that_fail_and_are_passed_over_are_named() -> None:
    setup = ["module load nope", "if false; then", "true; fi; false || true", "(exit 3)"]
    found = probe(sys.executable, setup=setup).failed_setup
    assert found[:2] == (
        "`module load nope` ended with exit code 127",
        "`( exit 3 )` ended with exit code 3",
    )
    assert "command not found" in found[2]
    assert probe(sys.executable, setup=["export X=1"]).failed_setup == ()


def test_one_that_hangs(tmp_path: Path) -> None:
    python = _program(tmp_path / "python", "sleep 600 & wait")
    began = time.monotonic()
    with pytest.raises(UsageError, match="no answer within 1 s"):
        probe(python, timeout=1)
    assert time.monotonic() - began < 60


@pytest.mark.parametrize("version", ["2.7.18", "3.6.8", "3.9.20"])
def test_one_that_is_too_old(tmp_path: Path, version: str) -> None:
    with pytest.raises(UsageError, match=rf"is Python {version}; it must be 3\.10 or newer"):
        probe(_pretend(tmp_path / "python", version))


def test_one_without_torch(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no torch and deepspeed") as caught:
        probe(_pretend(tmp_path / "python", "3.11.2"), needs=TRAINS)
    assert "-m pip install torch deepspeed" in str(caught.value.hint)


def test_one_without_a_tracker(tmp_path: Path) -> None:
    python = _pretend(tmp_path / "python", "3.11.2")
    with pytest.raises(UsageError, match=r"no wandb, which tracking\.wandb needs") as caught:
        probe(python, needs={"wandb": "tracking.wandb"})
    assert "-m pip install wandb" in str(caught.value.hint)
    named = r"no torch and tensorboard, which a function entry and tracking\.tensorboard need\n"
    needs = {"torch": "a function entry", "tensorboard": "tracking.tensorboard"}
    with pytest.raises(UsageError, match=named):
        probe(python, needs=needs)


def test_modules_are_looked_for_and_not_imported(bare: str, tmp_path: Path) -> None:
    (tmp_path / "there.py").write_text("raise SystemExit('imported')\n")
    found = probe(
        bare, variables={"PYTHONPATH": str(tmp_path)}, modules=("json", "there", "gone", "away")
    )
    assert found.missing == ("gone", "away")
    assert found.facts["missing"] == ["gone", "away"]
    assert "missing" not in probe(bare, modules=("json",)).facts

"""A report as PDF, by a browser."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest

from hpcrun.errors import HpcrunError, UsageError
from hpcrun.tools.report import pdf
from tests.support.command import hpcrun
from tests.support.experiment import Experiment, slurm_shim
from tests.tools.report.study import hostile

PAGE = b"<!DOCTYPE html><title>one - hpcrun report</title><p>words"


def _program(directory: Path, name: str, script: str) -> Path:
    directory.mkdir(exist_ok=True)
    path = directory / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def study(tmp_path: Path) -> Path:
    slurm_shim(tmp_path / "shim")
    hostile(Experiment(tmp_path / "root"))
    return tmp_path / "root"


def test_it_is_printed(study: Path, tmp_path: Path) -> None:
    if not any(map(shutil.which, pdf.BROWSERS)):
        if os.environ.get("HPCRUN_REQUIRE_CLUSTER") == "1":
            pytest.fail("no browser on PATH: tests/testbed/install.sh installs one", pytrace=False)
        pytest.skip("no browser on PATH")
    for _ in range(2):  # an earlier one of ours is replaced
        done = hpcrun("report", "study", "-o", "study.pdf", root=study, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("study.pdf: 2 runs, ")
    printed = (tmp_path / "study.pdf").read_bytes()
    assert printed.startswith(b"%PDF-")
    assert len(re.findall(rb"/Type /Page\b", printed)) >= 2
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]
    (tmp_path / "thesis.pdf").write_bytes(b"%PDF-1.4 chapter one")
    done = hpcrun("report", "study", "-o", "thesis.pdf", root=study, cwd=tmp_path)
    assert done.returncode == 2
    assert "exists and is no report of hpcrun" in done.stderr


def test_without_a_browser_it_is_refused(
    study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "shim"))
    with pytest.raises(UsageError, match="none is on PATH") as raised:
        pdf.find_browser(Path("out/study.pdf"))
    assert raised.value.hint == "-o out/study.html, and print that to a PDF in a browser"
    done = hpcrun("report", "study", "-o", "study.pdf", root=study, cwd=tmp_path)
    assert done.returncode == 2
    assert "a browser prints a PDF, and none is on PATH (chromium, " in done.stderr
    assert not (tmp_path / "study.pdf").exists()


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("echo 'No usable sandbox!' >&2; exit 1", r"\(exit code 1\): No usable sandbox!"),
        ("exit 0", r"printed nothing \(exit code 0\)\n"),
        ("sleep 60", r"printed nothing in 0 s"),
        (
            'for each; do case $each in --print-to-pdf=*) echo no >"${each#*=}";; esac; done',
            r"printed nothing \(exit code 0\)",
        ),
    ],
)
def test_a_browser_that_prints_nothing(
    script: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pdf, "LONGEST", 0.4 if "sleep" in script else 60.0)
    browser = _program(tmp_path / "bin", "chromium", script)
    with pytest.raises(HpcrunError, match=told) as raised:
        pdf.print_page(str(browser), PAGE, Path("study.pdf"))
    assert raised.value.hint == "-o study.html, and print that to a PDF in a browser"


def test_what_a_browser_is_given(tmp_path: Path) -> None:
    """The page without scripts or network, in a profile of its own, none of which stays."""
    words = tmp_path / "words"
    script = (
        f"printf '%s\\n' \"$@\" > '{words}'; env > '{words}.env'\n"
        'for each; do case $each in --print-to-pdf=*) printf %%PDF-1.4 >"${each#*=}";; esac; done'
    )
    browser = _program(tmp_path / "bin", "chromium", script)
    assert pdf.print_page(str(browser), PAGE, Path("study.pdf")) == b"%PDF-1.4"
    given = words.read_text().splitlines()
    assert "--host-resolver-rules=MAP * ~NOTFOUND" in given
    [profile] = [word.partition("=")[2] for word in given if word.startswith("--user-data-dir=")]
    assert not Path(profile).parent.exists()
    assert f"HOME={Path(profile).parent}" in Path(f"{words}.env").read_text()

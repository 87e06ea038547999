"""A wheel, installed where there is no checkout and no torch, plans, submits and runs."""

from __future__ import annotations

import email
import json
import re
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from hpcrun.cli.help import topics
from tests.support import wheels
from tests.support.needs_tool import needs_tool

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class Installed:
    """A virtual environment with hpcrun in it, and an empty directory to work in."""

    bin: Path
    directory: Path

    def __call__(
        self, program: str, *arguments: str, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        answer = subprocess.run(
            [self.bin / program, *arguments],
            cwd=self.directory,
            env={
                "PATH": f"{self.bin}:/usr/bin:/bin",
                "HOME": str(self.directory.parent / "home"),
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        assert not check or answer.returncode == 0, answer.stdout + answer.stderr
        return answer


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout, built by its own build back end without the network."""
    return wheels.built("--wheel", ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source distribution of this checkout."""
    return wheels.built("--sdist", ROOT, tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The wheel and what it requires, without its extras, in an environment of their own."""
    directory = tmp_path_factory.mktemp("installed")
    python = wheels.install(wheel, directory / "venv")
    for name in ("empty", "home"):
        (directory / name).mkdir()
    return Installed(python.parent, directory / "empty")


def test_the_wheel_carries_what_runs_need(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    shipped = [
        path.relative_to(ROOT)
        for directory in ("configs", "jobs", "templates")
        for path in (ROOT / directory).rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    ]
    assert shipped
    assert {f"hpcrun/_data/{path}" for path in shipped} <= names
    assert any(name.endswith("/licenses/LICENSE") for name in names)
    pages = {"README", *(stem for stem, _ in topics().values())}
    assert {f"hpcrun/_data/docs/{stem}.md" for stem in pages} <= names
    assert "hpcrun/_data/README.md" in names, "what `hpcrun help` searches beside the topics"
    shared = {name.partition(".data/data/share/")[2] for name in names}
    assert {
        "man/man1/hpcrun.1",
        *("bash-completion/completions/hpcrun", "zsh/site-functions/_hpcrun"),
        "fish/vendor_completions.d/hpcrun.fish",
    } <= shared
    assert not [name for name in names if name.startswith(("tests/", "bench/", "docs/"))]


def test_an_index_would_take_both(wheel: Path, sdist: Path) -> None:
    pytest.importorskip("twine", reason="`make test` installs it")
    done = subprocess.run(
        [sys.executable, "-m", "twine", "check", "--strict", wheel, sdist],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("PASSED") == 2


def test_what_an_index_shows_leads_nowhere_else(wheel: Path) -> None:
    """The long description, the licence and the classifiers; no link or picture of a checkout."""
    with zipfile.ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        found = email.message_from_bytes(archive.read(name))
    shown = str(found.get_payload())
    assert "# hpcrun\n" in shown
    prose = re.sub(r"^```.*?^```", "", shown, flags=re.MULTILINE | re.DOTALL)
    assert re.findall(r"\]\((?!https?://)", prose) == []
    assert found["Description-Content-Type"] == "text/markdown"
    assert (found["License-Expression"], found["License-File"]) == ("Apache-2.0", "LICENSE")
    named = {row.rpartition(" :: ")[2] for row in found.get_all("Classifier", [])}
    assert {"Linux", "3.10", "3.11", "3.12"} <= named


def test_the_sdist_builds_the_same_wheel(wheel: Path, sdist: Path, tmp_path: Path) -> None:
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    [source] = tmp_path.iterdir()
    again = wheels.built("--wheel", source, tmp_path)
    assert again.name == wheel.name
    assert _contents(again) == _contents(wheel)


def _contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_nothing_that_trains_is_there(installed: Installed) -> None:
    code = "import importlib.util as util; print(*map(util.find_spec, ('torch', 'deepspeed')))"
    assert installed("python", "-c", code).stdout.split() == ["None", "None"]


def test_plan(installed: Installed) -> None:
    arguments = ["plan", "language-model", "cluster=slurm", "--root", "root"]
    shown = installed("hpcrun", *arguments).stdout
    assert "#SBATCH --job-name=language-model" in shown
    assert '"train_batch_size": 16' in shown
    assert shown == installed("hpcrun", *arguments).stdout
    assert shown == installed("hpcrun", "submit", *arguments[1:], "--dry-run").stdout
    assert list(installed.directory.iterdir()) == []


@needs_tool("completion")
def test_topics_and_completion_come_along(installed: Installed) -> None:
    assert installed("hpcrun", "help", "specs").stdout.startswith("# Specs\n")
    assert "_HPCRUN_COMPLETE" in installed("hpcrun", "completion", "zsh").stdout


@pytest.mark.parametrize("verb", [["submit", "--wait"], ["run"]], ids=" ".join)
def test_a_shipped_experiment_runs(verb: list[str], installed: Installed, tmp_path: Path) -> None:
    root = ["--root", str(tmp_path / "root")]
    installed("hpcrun", *verb, "hello", "cluster=local", "resources.nodes=2", *root)
    [status] = json.loads(installed("hpcrun", "status", "--json", *root).stdout)
    assert (status["experiment"], status["run"], status["state"]) == ("hello", 0, "completed")
    lines = installed("hpcrun", "logs", *root).stdout.splitlines()
    assert sorted(re.findall(r"hello from rank (\d) of 4", "\n".join(lines))) == list("0123")
    assert list(installed.directory.iterdir()) == []


def test_training_without_torch_is_refused_before_it_starts(
    installed: Installed, tmp_path: Path
) -> None:
    root = ["--root", str(tmp_path / "root")]
    arguments = ["submit", "language-model", "cluster=local", *root]
    answer = installed("hpcrun", *arguments, check=False)
    assert answer.returncode == 2, answer.stdout + answer.stderr
    assert "torch" in answer.stderr
    assert not (tmp_path / "root" / "language-model").exists()


def test_the_version_is_said_once(installed: Installed) -> None:
    from hpcrun import __version__

    assert installed("hpcrun", "--version").stdout == f"hpcrun {__version__}\n"
    code = "from importlib.metadata import version; print(version('hpcrun'))"
    assert installed("python", "-c", code).stdout.strip() == __version__
    assert f"## {__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_nothing_of_this_machine_is_in_the_repository() -> None:
    tracked = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if tracked.returncode != 0:
        pytest.skip("not a git checkout")
    # Where this lies is nobody's business; registries are configured, never named.
    words = [str(Path.home() / ".pyenv"), "pypi" + ".org", "pytorch" + ".org/whl"]
    if len(ROOT.parts) > 2:
        words.append(str(ROOT))
    found = []
    for name in filter(None, tracked.stdout.split("\0")):
        path = ROOT / name
        if not path.is_file():
            continue
        text = path.read_bytes().decode(errors="replace")
        found += [f"{name}: {word}" for word in words if word in text]
    assert found == []

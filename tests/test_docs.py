"""The documentation says what is so."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from hpcrun import errors
from hpcrun.cli import commands

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])


def _script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_reference_of_commands_is_up_to_date() -> None:
    module = _script("make_cli")
    assert module.PAGE.read_text() == module.page(), "run `make docs`"


def test_the_man_page_is_up_to_date() -> None:
    module = _script("make_man")
    assert module.PAGE.read_text() == module.page(), "run `make docs`"


def test_what_tab_knows_of_the_commands_is_up_to_date() -> None:
    module = _script("make_completion")
    assert module.FILE.read_text(encoding="utf-8") == module.text(), "run `make docs`"


def test_the_man_page_renders_without_a_warning() -> None:
    if shutil.which("man") is None or shutil.which("groff") is None:
        pytest.skip("needs man-db and groff: tests/testbed/install.sh")
    shown = subprocess.run(
        ["man", "--warnings", "-E", "UTF-8", "-l", str(ROOT / "docs" / "hpcrun.1")],
        env={**os.environ, "LC_ALL": "C.UTF-8", "MANWIDTH": "80", "MANPAGER": "cat"},
        **{"capture_output": True, "text": True, "check": False},
    )
    assert (shown.returncode, shown.stderr) == (0, "")
    text = re.sub(".\b", "", shown.stdout)
    for name in commands.known():
        assert f"hpcrun {name}" in text
    assert "hpcrun submit finetune.yaml --only failed" in text
    assert re.search(r"(?m)^ +hpcrun status study state=failed$", text)
    assert "```" not in text
    assert "| ---" not in text


def _site(directory: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--site-dir", "site"],
        **{"cwd": directory, "capture_output": True, "text": True, "check": False},
    )


def test_the_site_builds_and_a_broken_link_fails(tmp_path: Path) -> None:
    for path in ROOT.iterdir():
        if not path.name.startswith(".") and path.name not in ("docs", "build"):
            (tmp_path / path.name).symlink_to(path)
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    built = _site(tmp_path)
    assert built.returncode == 0, built.stderr
    index = (tmp_path / "site" / "index.html").read_text()
    assert 'href="getting-started.html"' in index
    with open(tmp_path / "docs" / "glossary.md", "a") as page:
        page.write("\n[nowhere](no-such-page.md)\n")
    assert "no-such-page.md" in (broken := _site(tmp_path)).stderr
    assert broken.returncode != 0


def test_the_drawings_of_the_tree_are_up_to_date() -> None:
    module = _script("make_tree")
    assert module.BEGIN in (ROOT / "docs" / "architecture.md").read_text()
    stale = [page.name for page, (found, wanted) in module.pages().items() if found != wanted]
    assert stale == [], "run `make docs`"


def test_every_exit_code_is_documented() -> None:
    codes = {value for name, value in vars(errors).items() if name.startswith("EXIT_")}
    assert set(_script("make_cli").EXIT_CODES) == codes


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def _exists(name: str) -> bool:
    """Whether there is a module, or a public name of one."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        path = ROOT.joinpath(*parts[:length])
        file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        if file.is_file():
            rest = parts[length:]
            return not rest or re.search(rf"\b{re.escape(rest[0])}\b", file.read_text()) is not None
    return False


def test_names_of_modules_are_those_of_now() -> None:
    found = []
    for path in [*PAGES, *(ROOT / "hpcrun").rglob("*.py")]:
        if path.name != "CHANGELOG.md":
            for name in re.findall(r"`+(hpcrun(?:\.\w+)+)`", path.read_text()):
                if not _exists(name) and not name.endswith((".zip", ".session")):
                    found.append(f"{path.relative_to(ROOT)}: {name}")
    assert found == []

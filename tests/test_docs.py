"""The documentation says what is so."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from hpcrun import errors, extensions, tools
from hpcrun.cli import commands
from hpcrun.cli.help import parts
from hpcrun.extensions import Registry

ROOT = Path(__file__).parent.parent
# Groups of entry points are written like modules.
GROUPS = {kind.group for kind in vars(extensions).values() if isinstance(kind, Registry)}
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
    for name in commands.own_commands():
        assert f"hpcrun {name}" in text
    assert "hpcrun submit finetune.yaml --only failed" in text
    assert re.search(r"(?m)^ +hpcrun status study state=failed$", text)
    assert "```" not in text
    assert "| ---" not in text


# Answers questions as a reader's browser does, with the site's own search.
_BROWSER = """
const fs = require('fs'), vm = require('vm');
const read = (name) => fs.readFileSync(`site/search/${name}`, 'utf-8');
class XMLHttpRequest {
  addEventListener(name, act) { this.act = act; }
  open(method, name) { this.responseText = read(name); }
  send() { this.act.call(this); }
}
const own = {console: {log() {}, error() {}}, XMLHttpRequest, postMessage() {}};
own.importScripts = (...names) => names.forEach((name) => vm.runInContext(read(name), own));
vm.createContext(own);
vm.runInContext(read('worker.js'), own);
own.onmessage({data: {init: true}});
const first = (question) => (own.search(question)[0] || {}).location;
console.log(JSON.stringify(JSON.parse(fs.readFileSync(0, 'utf-8')).map(first)));
"""
# What people ask -> the section that the site's search finds first.
_FOUND_FIRST = {
    "how do I use 2 nodes with torchrun": "questions.html#two-nodes-with-torchrun",
    "how do I limit to 4 jobs at a time": "questions.html#limit-to-4-jobs-at-a-time",
    "where are my checkpoints": "questions.html#where-are-my-checkpoints",
    "how do I change the time limit of queued jobs": "keeping-order.html#changing-what-is-queued",
    "how do I add wandb": "recipes.html#weights-biases-wandb",
    "how do I start from another run's weights": "questions.html#start-from-another-runs-weights",
    "how do I use a conda env": "recipes.html#a-conda-environment-or-a-venv",
    "why is my job pending": "questions.html#why-is-my-job-pending",
    "how do I delete old runs": "questions.html#delete-old-runs",
    "how do I get an email": "recipes.html#an-e-mail",
    "uv": "recipes.html#uv",
    "module load": "recipes.html#modules-module-load-lmod",
    "/etc/hpcrun/clusters": "recipes.html#a-default-profile-for-the-whole-site",
}


def _found_first(directory: Path, questions: Iterable[str]) -> list[str | None]:
    done = subprocess.run(
        ["node", "-e", _BROWSER],
        **{"cwd": directory, "capture_output": True, "text": True, "check": True},
        input=json.dumps(list(questions)),
    )
    found: list[str | None] = json.loads(done.stdout)
    return found


def _site(directory: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--site-dir", "site"],
        **{"cwd": directory, "capture_output": True, "text": True, "check": False},
    )


def test_the_site_builds_answers_questions_and_a_broken_link_fails(tmp_path: Path) -> None:
    for path in ROOT.iterdir():
        if not path.name.startswith(".") and path.name not in ("docs", "build"):
            (tmp_path / path.name).symlink_to(path)
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    built = _site(tmp_path)
    assert built.returncode == 0, built.stderr
    index = (tmp_path / "site" / "index.html").read_text()
    assert 'href="getting-started.html"' in index
    if shutil.which("node"):
        found = dict(zip(_FOUND_FIRST, _found_first(tmp_path, _FOUND_FIRST), strict=True))
        assert {
            question: place
            for question, place in found.items()
            if not (place or "").startswith(_FOUND_FIRST[question])
        } == {}
    with open(tmp_path / "docs" / "glossary.md", "a") as page:
        page.write("\n[nowhere](no-such-page.md)\n")
    assert "no-such-page.md" in (broken := _site(tmp_path)).stderr
    assert broken.returncode != 0


def test_the_drawing_of_the_tree_is_up_to_date() -> None:
    module = _script("make_tree")
    found, wanted = module.drawn()
    assert module.BEGIN in found
    assert found == wanted, "run `make docs`"


def _menu() -> dict[str, list[str]]:
    """Return each part of the site's menu with its pages."""
    menu = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    return {
        part: pages for entry in menu for part, pages in entry.items() if isinstance(pages, list)
    }


def _list_of_pages() -> dict[str, dict[str, str]]:
    """Return each part of docs/README.md with its pages, and the line on each."""
    _, *parts = re.split(
        r"^## (.+)\n", (ROOT / "docs" / "README.md").read_text(), flags=re.MULTILINE
    )
    lines = re.compile(r"^- \[[^]]+\]\(([^)]+)\): (.+)$", re.MULTILINE)
    return {
        part: {page.replace("../", "project/"): line for page, line in lines.findall(text)}
        for part, text in zip(parts[::2], parts[1::2], strict=True)
    }


def test_each_page_stands_in_the_menu_once() -> None:
    pages = {page.name for page in (ROOT / "docs").glob("*.md")} - {"README.md"}
    beside = {f"project/{name}" for name in _script("site_links").PAGES}
    assert sorted(page for part in _menu().values() for page in part) == sorted(pages | beside)


def test_each_page_has_a_line_in_the_list_of_pages_where_the_menu_has_it() -> None:
    listed = {part: list(pages) for part, pages in _list_of_pages().items()}
    assert listed == _menu()


def test_help_says_of_each_page_what_the_list_of_pages_says() -> None:
    listed = {
        part: {page: line for page, line in pages.items() if not page.startswith("project/")}
        for part, pages in _list_of_pages().items()
    }
    topics = {
        part: {f"{stem}.md": line for stem, line in pages.values()}
        for part, pages in parts().items()
    }
    assert listed == topics
    assert [list(pages) for pages in listed.values()] == [list(pages) for pages in topics.values()]


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
                is_module = name not in GROUPS and not name.endswith((".zip", ".session"))
                if is_module and not _exists(name):
                    found.append(f"{path.relative_to(ROOT)}: {name}")
    assert found == []


def _places() -> list[str]:
    """Where CONTRIBUTING.md says that changes go: paths in hpcrun, some with a name in the file."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    _, _, table = text.partition("| to change | go to |\n|---|---|\n")
    rows = table.partition("\n\n")[0].splitlines()
    return [place for row in rows for place in re.findall(r"`([^`]+)`", row.split(" | ")[1])]


def _binds(statement: ast.stmt, name: str) -> bool:
    if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
        return statement.name == name
    if isinstance(statement, ast.Assign):
        bound = [node for target in statement.targets for node in ast.walk(target)]
    else:
        bound = [statement.target] if isinstance(statement, ast.AnnAssign) else []
    return any(isinstance(node, ast.Name) and node.id == name for node in bound)


def _is_place(place: str) -> bool:
    path, _, name = place.partition(":")
    file = ROOT / "hpcrun" / path
    if not name:
        return file.exists()
    body = ast.parse(file.read_text()).body if file.is_file() else []
    for part in name.split("."):
        found = next((one for one in body if _binds(one, part)), None)
        if found is None:
            return False
        body = getattr(found, "body", [])
    return True


def test_changes_go_where_there_is_such_a_place() -> None:
    places = _places()
    assert len(places) > 40
    # A tool may have been taken away.
    gone = re.compile(r"tools/(\w+)/")
    there = [one for one in places if not (found := gone.match(one)) or tools.has(found[1])]
    assert [one for one in there if not _is_place(one)] == []


def test_the_documentation_is_short_enough_to_be_read() -> None:
    """A budget that is only lowered: who needs more words takes others out."""
    pages = (ROOT / "docs").glob("*.md")
    assert sum(len(page.read_text().split()) for page in pages) <= 50_000

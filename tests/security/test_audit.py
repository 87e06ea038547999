"""The audit of code and dependencies: what it excepts is only what it says."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
MODULES = sorted((ROOT / "hpcrun").rglob("*.py"))
# They load what this user's own run saved, once `hpcrun.run.checkpoint.trust` has seen whose it is.
LOADERS = {"rank_state.py": 1, "resize.py": 3, "torch_engine.py": 1}


@pytest.fixture(scope="module")
def audit() -> ModuleType:
    spec = importlib.util.spec_from_file_location("audit", ROOT / ".ci" / "audit.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _narrows(test: ast.expr) -> bool:
    if isinstance(test, ast.Compare):
        return all(isinstance(operator, (ast.Is, ast.IsNot)) for operator in test.ops)
    return isinstance(test, ast.Call) and ast.unparse(test.func) == "isinstance"


def test_asserts_only_narrow_types() -> None:
    """`python -O` leaves them out, so no check of input may be one."""
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Assert) and not _narrows(node.test)
    ]
    assert wrong == []


def test_pickles_are_loaded_where_it_is_known_whose_they_are() -> None:
    found: dict[str, int] = {}
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                names = {alias.name.partition(".")[0] for alias in node.names}
                names.add(str(getattr(node, "module", "")).partition(".")[0])
                if path.name == "own_package.py":  # it writes, and loads nothing
                    names.discard("marshal")
                if path.name == "peer_messages.py":  # between an attempt's ranks, as torch does
                    names.discard("pickle")
                if path.name == "shard_files.py":  # nothing but what torch's index is made of
                    names.discard("pickle")
                assert not names & {"pickle", "marshal", "shelve", "dill", "cloudpickle"}, path
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "torch.load":
                keys = {word.arg: ast.unparse(word.value) for word in node.keywords}
                if keys.get("weights_only") != "True":
                    found[path.name] = found.get(path.name, 0) + 1
    assert found == LOADERS


def test_a_known_vulnerability_fails_unless_there_is_a_reason(
    audit: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    flaw = {"id": "PYSEC-1", "aliases": ["CVE-1"], "fix_versions": ["2"]}
    flawed = {"name": "a", "version": "1", "vulns": [flaw]}
    sound = {"name": "b", "version": "1", "vulns": []}
    report = {"dependencies": [flawed, sound, {"name": "c", "skip_reason": "unknown"}]}
    assert audit.judge(report) == (["a 1: PYSEC-1, fixed in 2"], ["c"], 2)
    monkeypatch.setitem(audit.ACCEPTED, "CVE-1", "hpcrun does not call it")
    assert audit.judge(report) == ([], ["c"], 2)
    assert all(audit.ACCEPTED.values()), "each exception says why"


def test_what_hpcrun_needs_is_looked_up(audit: ModuleType) -> None:
    names = {one.partition("==")[0] for one in audit.pinned()}
    assert {"click", "jinja2", "pyyaml", "torch", "submitit"} <= names

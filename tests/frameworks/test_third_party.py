"""The specs of programs of others, which `on_slurm` runs and the documentation shows."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.frameworks.third_party import PROGRAMS, SPECS
from tests.support.command import hpcrun

PAGE = Path(__file__).parents[2] / "docs" / "frameworks.md"


def test_the_documentation_shows_the_specs_that_ran() -> None:
    shown = PAGE.read_text()
    assert {path.stem for path in SPECS.glob("*.yaml")} == set(PROGRAMS)
    for name in PROGRAMS:
        assert f"```yaml\n{(SPECS / f'{name}.yaml').read_text()}```\n" in shown, name


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_spec_is_planned_with_what_resumes_it(name: str, tmp_path: Path) -> None:
    text = (SPECS / f"{name}.yaml").read_text()
    (tmp_path / "spec.yaml").write_text(text)
    entry = yaml.safe_load(text)["entry"]
    if isinstance(entry, str):
        (tmp_path / entry).parent.mkdir(exist_ok=True)
        (tmp_path / entry).write_text("")
    for linked in ("model", "data"):
        (tmp_path / linked).mkdir()
    done = hpcrun("plan", tmp_path / "spec.yaml", "+cluster=local", "--root", tmp_path / "root")
    assert done.returncode == 0, done.stderr
    assert "a command that resumes" in done.stdout

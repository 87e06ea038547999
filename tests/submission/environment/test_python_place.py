"""Where a Python says that it and its packages lie."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from hpcrun.errors import UsageError
from hpcrun.submission.environment import python_place
from tests.support.made_venv import MadeVenv


def test_a_virtual_environment_after_setup_lines(tmp_path: Path) -> None:
    venv = MadeVenv(tmp_path / "venv")
    (tmp_path / "more").mkdir()
    setup = ["echo setup lines may print", f"export PATH={venv.directory}/bin:$PATH"]
    found = python_place.ask("python", setup, {"PYTHONPATH": str(tmp_path / "more")})
    assert found.is_virtual
    assert (found.prefix, found.base_prefix) == (str(venv.directory), sys.base_prefix)
    assert found.executable == venv.python
    assert found.packages == str(venv.site)
    assert found.paths[0] == str(tmp_path / "more")
    assert found.version == "{}.{}.{}".format(*sys.version_info[:3])


def test_a_program_that_says_nothing_of_it() -> None:
    with pytest.raises(UsageError, match="does not say where its packages lie"):
        python_place.ask("/bin/true", (), {})

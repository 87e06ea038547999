"""The modules that a program cannot do without, read from its file."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcrun.submission.preflight import needed_modules

PROGRAM = """import json, numpy as np
from torch.nn import functional
from . import sibling
import helper, package.inner, hpcrun
from beside import things
try:
    import flash_attn
except ImportError:
    flash_attn = None
if json:
    import apex
def later():
    import wandb
"""


@pytest.fixture
def code(tmp_path: Path) -> Path:
    (tmp_path / "src" / "package").mkdir(parents=True)
    (tmp_path / "helper.py").touch()
    (tmp_path / "src" / "beside.py").touch()
    (tmp_path / "src" / "train.py").write_text(PROGRAM)
    return tmp_path


def test_what_is_imported_at_once_and_is_not_of_the_code(code: Path) -> None:
    assert needed_modules("src/train.py", code, ".") == {
        "json": "src/train.py:1",
        "numpy": "src/train.py:1",
        "torch": "src/train.py:2",
    }


@pytest.mark.parametrize(
    "text",
    [
        "import sys\nsys.path.insert(0, '..')\nimport utils\n",
        "import x\nprint('no Python of now'\n",
        "import x\n" + "(" * 100_000,
        "import x\nx = '\0'\n",
        None,
    ],
    ids=["looks elsewhere", "a syntax error", "deep", "a null byte", "no file"],
)
def test_in_doubt_nothing_is_said(code: Path, text: str | None) -> None:
    if text is not None:
        (code / "other.py").write_text(text)
    assert needed_modules("other.py", code, ".") == {}

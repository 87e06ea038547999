"""The features that are there, wherever hpcrun is imported from."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hpcrun import feature
from hpcrun.submission.code import own_package

ASK = """
import hpcrun.features
if {forget}:
    hpcrun.features.__loader__ = object()  # on Python 3.13 it has no list before it is asked for
from hpcrun import feature
print(*feature.names(), *feature.blocks())
"""


@pytest.mark.parametrize("forget", [False, True])
def test_features_of_an_archive(tmp_path: Path, forget: bool) -> None:
    own_package.write(tmp_path / "hpcrun.zip")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "hpcrun.zip")}
    argv = [sys.executable, "-c", ASK.format(forget=forget)]
    said = subprocess.run(
        argv, env=environment, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert said.stdout.split() == [*feature.names(), *feature.blocks()]


def test_a_feature_may_have_no_block_of_its_own() -> None:
    assert {"object_storage", "staging"} <= {*feature.blocks()} < {*feature.names()}

"""The block ``staging``: what is refused, and the absolute paths that it comes to."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from hpcrun import feature
from hpcrun.compile import compile_spec
from hpcrun.errors import HpcrunError
from hpcrun.features.staging.staging_block import Staging
from hpcrun.state.spec.blocks import SpecBlocks

BASE = {"name": "e", "entry": ["true"], "cluster": "local"}


def _write(directory: Path, **given: object) -> Path:
    (directory / "e.yaml").write_text(yaml.safe_dump({**BASE, **given}))
    return directory / "e.yaml"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"staging": {"paths": [".."]}}, ("staging.paths.0:", "'..'")),
        ({"args": ["${hpcrun:staged}/a"]}, ("args.0:", "names nothing")),
        (
            {"staging": {"paths": ["${hpcrun:scratch}/a"]}},
            ("staging.paths.0:", "known only as an attempt starts"),
        ),
        ({"staging": {"path": ["a"]}}, ("staging.path", "did you mean 'paths'?")),
    ],
    ids=["no name", "nothing staged", "later", "misspelt"],
)
def test_what_is_wrong_is_refused(
    given: dict[str, object], words: tuple[str, ...], tmp_path: Path
) -> None:
    with pytest.raises(HpcrunError) as caught:
        compile_spec(_write(tmp_path, **given))
    told = f"{caught.value.message} {caught.value.hint}"
    assert [word for word in words if word not in told] == [], told


def test_paths_are_absolute_in_the_plan(tmp_path: Path) -> None:
    found = compile_spec(_write(tmp_path, staging={"paths": ["data/*.bin"]}), root=tmp_path)
    (run,) = found.runs
    block = SpecBlocks(run.spec).block("staging")
    assert block == Staging([f"{tmp_path}/data/*.bin"])


@pytest.mark.parametrize(
    ("block", "is_asked"), [({"paths": ["a"]}, 1), ({"paths": []}, 0), (None, 0)]
)
def test_a_run_asks_for_it_by_its_paths(block: object, is_asked: int) -> None:
    spec = {"staging": block, "object_storage": None}
    assert feature.features_of(spec) == [feature.every()["staging"]] * is_asked

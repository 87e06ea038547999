"""What a run needs to see in its container."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import yaml

from hpcrun.compile.compiler import compile_spec
from hpcrun.compile.freeze import freeze
from hpcrun.container import rank_python
from hpcrun.container.runtimes import Mount
from hpcrun.state.layout import ExperimentPaths


def test_what_the_spec_names_is_seen_inside(tmp_path: Path) -> None:
    (tmp_path / "linked").mkdir()
    (tmp_path / "secrets").write_text("A=1\n")
    (tmp_path / "secrets").chmod(0o600)
    spec = {
        **{"name": "e", "entry": ["true"], "cluster": "local", "code": {"link": ["linked"]}},
        "checkpoint": {"initialize_from": "/elsewhere/pretrain/0"},
        "environment": {
            "secrets_file": "secrets",
            "container": {"image": "/i", "runtime": "bubblewrap", "mounts": ["/x:/y:ro"]},
        },
    }
    (tmp_path / "e.yaml").write_text(yaml.safe_dump(spec))
    root = tmp_path / "root"
    plan = freeze(compile_spec(tmp_path / "e.yaml", root=root))
    run = plan.runs[0]
    assert run.container is not None
    submission = ExperimentPaths(root / "e").submission(1)
    found = rank_python.run_mounts(run.container, submission, plan, run)
    assert {(one.source, one.target, one.read_only) for one in found} == {
        ("/elsewhere/pretrain", "/elsewhere/pretrain", True),
        (str(root), str(root), False),
        (str(tmp_path / "linked"), str(tmp_path / "linked"), False),
        (str(tmp_path / "secrets"), str(tmp_path / "secrets"), True),
        ("/x", "/y", True),
    }
    above = replace(run.container, mounts=[f"{tmp_path}", "/elsewhere:/elsewhere:ro"])
    found = rank_python.run_mounts(above, submission, plan, run)
    assert [one.source for one in found if one.source.startswith(str(tmp_path))] == [str(tmp_path)]
    assert "/elsewhere/pretrain" in {one.source for one in found}


def test_mounts_that_another_one_shows_are_left_out() -> None:
    given = [Mount("/r/exp", ""), Mount("/r", ""), Mount("/data/a", "", True), Mount("/data", "")]
    found = rank_python._without_covered([*given, Mount("/database", "")])
    assert found == [Mount("/r", "/r"), Mount("/data", "/data"), Mount("/database", "/database")]

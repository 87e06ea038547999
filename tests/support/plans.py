"""Plans made by hand, so that these tests need no compiler."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from hpcrun.state import files, plan_file
from hpcrun.state.layout import SubmissionPaths, experiment
from hpcrun.state.plan import Array, Entry, Plan, RunPlan
from hpcrun.submission.code import own_package, snapshot
from hpcrun.submission.code.code_files import CodeScope


def command_plan(
    code_root: Path, commands: dict[int, list[str]], *, max_parallel: int | None = None, **spec: Any
) -> Plan:
    """One run a command, on the local executor, with the Python of the tests."""
    environment = {"python": sys.executable, "setup": [], "variables": {}}
    environment.update(spec.pop("environment", {}))
    resources = {"nodes": 1, "ntasks_per_node": 1, "gpus_per_node": 0, "cpus_per_task": None}
    runs = tuple(
        RunPlan(
            number=number,
            identity=f"identity-{number}",
            label="",
            swept={},
            entry=Entry("command", argv=tuple(argv)),
            spec={
                "resources": resources,
                "environment": environment,
                "recovery": {"requeue": False},
                **spec,
            },
        )
        for number, argv in commands.items()
    )
    return Plan(
        name="experiment",
        spec_file=str(code_root / "spec.yaml"),
        code_root=str(code_root),
        directory=".",
        cluster={"executor": "local", "setup": [], "fabric": {}},
        max_parallel=max_parallel,
        runs=runs,
        arrays=(Array(tuple(commands), "", 0.0),),
    )


def submission_of(plan: Plan, root: Path) -> SubmissionPaths:
    """The plan's submission directory, as `hpcrun submit` makes it."""
    paths = experiment(root, plan.name).submission(1)
    paths.directory.mkdir(parents=True)
    frozen = snapshot.freeze(CodeScope(Path(plan.code_root), without=[root]), paths.experiment.code)
    own_package.write(paths.package)
    plan_file.write(plan, paths.plan)
    files.write_json(paths.submission, {"number": 1, "code": frozen.to_data()})
    return paths

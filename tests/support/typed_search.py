"""Submit and read runs as a user's program does; `mypy --strict` accepts it anywhere."""

from __future__ import annotations

import hpcrun

done: hpcrun.Experiment = hpcrun.submit("s.yaml", {"config.lr": 1e-3}, sweeps={"seed": [1, 2]})
found: list[hpcrun.RunStatus] = hpcrun.experiment(done.name, root="root").wait(timeout=60.0)
steps: list[int | None] = [run.step for run in found]
losses = [row["loss"] for row in done.results("state=completed")]
line: hpcrun.LogLine = next(done.logs(0, rank=[0], tail=1))
print(line.line.upper(), steps, losses)

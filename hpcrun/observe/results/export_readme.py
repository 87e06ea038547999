"""What an exported archive says of itself, and how its own files are called."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Sequence

from hpcrun.observe.read import history, run_files
from hpcrun.observe.read.selection import Selected
from hpcrun.state.layout import SubmissionPaths
from hpcrun.text import runs_text

NAME = "README.txt"
SUMS = "SHA256SUMS"
RESULTS = "results.csv"
VERSIONS = "versions.json"


def configuration(one: Selected) -> str:
    """The name of a run's resolved configuration."""
    return f"configurations/{one.run.number}.json"


_FILES = """\
What is what
  results.csv               swept values beside metrics, a line a run
  configurations/RUN.json   the resolved configuration of each run, DeepSpeed's part complete
  versions.json             of Python, torch, DeepSpeed and hpcrun: as each submission found them
                            (submissions), and as each attempt RUN/ATTEMPT that has a session
                            loaded them (attempts)
  code/*.tar.gz             the code as it was frozen at submission
  submissions/N/            one `hpcrun submit`: plan.json, submission.json (who, when, with which
                            code), the sbatch scripts, journal.jsonl (what Slurm answered) and
                            hpcrun.zip (hpcrun itself, as it was)
  runs/RUN/                 ledger.jsonl: what happened to the run, attempt after attempt
  runs/RUN/attempts/A/      metrics.jsonl, session.jsonl (restored, saved, finished), telemetry of
                            the nodes, deepspeed.json as DeepSpeed got it, launch.json
  SHA256SUMS                sha256sum --check SHA256SUMS
"""

_READING = """\
To read it
  `hpcrun status NAME --root DIRECTORY`, where DIRECTORY holds the directory NAME that this file is
  in; the same with results, why, show and diff.
"""


def text(
    name: str, runs: Sequence[Selected], submissions: Sequence[SubmissionPaths], *, logs: bool
) -> str:
    """The file's content; the same for the same runs."""
    numbers = runs_text([one.run.number for one in runs])
    without = "checkpoints" if logs else "checkpoints and logs"
    head = f"{name}: {numbers}, exported by hpcrun without {without}.\n"
    parts = [head, _FILES, _READING.replace("NAME", name), _again(submissions)]
    return "\n".join(parts)


def _again(submissions: Sequence[SubmissionPaths]) -> str:
    """How it is run again, as far as the submissions tell."""
    lines = [
        "To run it again",
        "  Unpack the code, make a Python environment with the versions of versions.json, and",
        "  submit the spec that lies in the code. What was typed:",
    ]
    for paths in submissions:
        facts, plan = history.describe(paths), run_files.plan(paths)
        spec = os.path.relpath(plan.spec_file, plan.code_root) if plan is not None else "unknown"
        when = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(float(facts.get("time") or 0)))
        archive = (facts.get("code") or {}).get("archive")
        lines += [
            f"  submission {paths.number}, {when}, by {facts.get('user')}:",
            f"    code/{archive}, in it {spec}",
            f"    {shlex.join(str(word) for word in facts.get('argv') or ())}",
        ]
    return "\n".join(lines) + "\n"

"""The one place that names files.

::

    ROOT/
      .hpcrun/torch_extensions/KEY/     compiled DeepSpeed operators, shared
      NAME/                             an experiment
        submit.lock/HOST:PID:TICKS      the submit that is under way, while it is
        code/SHA.tar.gz                 frozen code, by content, shared by submissions
        submissions/1/                  one `hpcrun submit`
          plan.json                     the frozen plan (hpcrun.state.plan.Plan)
          submission.json               who, when, job Python, code archive
          hpcrun.zip                    hpcrun itself, as it was at submission
          script-0.sbatch               what sbatch was given, one an array of the plan
          journal.jsonl                 what was asked of Slurm and what it answered
          slurm-JOB_TASK.log            output of the batch steps
          local.log, local-N.log        the same of the local executor: its own, and of run N
        runs/3/                         one run; made when its first attempt starts
          intent.json                   finished, cancelled: every start reads it first
          origin.json                   whose weights it began with (checkpoint.initialize_from)
          ledger.jsonl                  what happened, written by supervisors alone
          tracking/NAME/                what a tracker keeps: event files, runs to be sent
          tracking/NAME.json            how far it has come
          checkpoints/step-00000100-a1/ saved at step 100 by attempt 1
          checkpoints/universal/…/      the newest of them, divided anew for another number of ranks
          attempts/1/                   claimed by mkdir; written by that attempt alone
            launch.json                 what each worker needs to know
            deepspeed.json              the final DeepSpeed configuration
            rank-00000.log              output of one rank
            agent-NODE.log              output of one node's agent
            tracker-NAME.log            output of what forwards metrics to a tracker
            warm.log                    output of ranks that wait for the next attempt, warm
            universal.log               what DeepSpeed said as it divided a checkpoint anew
            log-sizes.jsonl             when the ranks' logs were how long
            telemetry-NODE.jsonl        what one node was busy with, by its agent
            metrics.jsonl               one line a logged step, by rank 0 (or the user's script)
            session.jsonl               restored, saved, finished: by rank 0
            exit-00000.json             how a rank ended, when it ended badly
            orphaned.json               an agent lost its supervisor and has the job requeued
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class AttemptPaths:
    """The files of one attempt of a run."""

    directory: Path

    @property
    def number(self) -> int:
        return int(self.directory.name)

    @property
    def run(self) -> RunPaths:
        """The run that it belongs to."""
        return RunPaths(self.directory.parent.parent)

    @property
    def launch(self) -> Path:
        return self.directory / "launch.json"

    @property
    def deepspeed(self) -> Path:
        return self.directory / "deepspeed.json"

    @property
    def metrics(self) -> Path:
        return self.directory / "metrics.jsonl"

    @property
    def session(self) -> Path:
        return self.directory / "session.jsonl"

    def rank_log(self, rank: int) -> Path:
        return self.directory / f"rank-{rank:05d}.log"

    @property
    def rank_log_pattern(self) -> str:
        """The same names in srun's notation (``%t`` is the task's rank)."""
        return f"{slurm_path(self.directory)}/rank-%5t.log"

    def rank_logs(self) -> dict[int, Path]:
        """Rank -> log file, of those that exist, in the order of ranks."""
        found = sorted(self.directory.glob("rank-*.log"))
        return {int(path.stem[5:]): path for path in found if path.stem[5:].isdigit()}

    def logs(self) -> list[Path]:
        """What was printed: the logs of ranks, agents and conversions that exist, by name."""
        return sorted(self.directory.glob("*.log"))

    def tracker_logs(self) -> list[Path]:
        """Those that exist, by name; attempts of one start of a job share the first one's."""
        return sorted(self.directory.glob("tracker-*.log"))

    def records(self) -> list[Path]:
        """All other files of the attempt, by name."""
        found = (path for path in self.directory.glob("[!.]*") if path.is_file())
        return sorted(path for path in found if path.suffix != ".log")

    @property
    def log_sizes(self) -> Path:
        """When the ranks' logs were how long."""
        return self.directory / "log-sizes.jsonl"

    def telemetry(self, node: str) -> Path:
        """What a node was busy with, as its agent sampled it."""
        return self.directory / f"telemetry-{node}.jsonl"

    def telemetries(self) -> list[tuple[str, Path]]:
        """Node and file of each that exists, by name."""
        found = sorted(self.directory.glob("telemetry-*.jsonl"))
        return [(path.stem.removeprefix("telemetry-"), path) for path in found]

    @property
    def conversion_log(self) -> Path:
        return self.directory / "universal.log"

    @property
    def warm_log(self) -> Path:
        return self.directory / "warm.log"

    def agent_log(self, node: str) -> Path:
        return self.directory / f"agent-{node}.log"

    def tracker_log(self, name: str) -> Path:
        return self.directory / f"tracker-{name}.log"

    @property
    def orphaned(self) -> Path:
        """Written by an agent that lost its supervisor, before it has the job requeued."""
        return self.directory / "orphaned.json"

    def stacks(self, rank: int) -> Path:
        """Where a rank's threads were when the run hung."""
        return self.directory / f"stacks-{rank:05d}.txt"

    def exit_record(self, rank: int) -> Path:
        return self.directory / f"exit-{rank:05d}.json"

    def exit_records(self) -> list[Path]:
        return sorted(self.directory.glob("exit-*.json"))


@dataclass(frozen=True)
class RunPaths:
    """The files of one run."""

    directory: Path

    @property
    def number(self) -> int:
        return int(self.directory.name)

    @property
    def intent(self) -> Path:
        return self.directory / "intent.json"

    @property
    def ledger(self) -> Path:
        return self.directory / "ledger.jsonl"

    @property
    def checkpoints(self) -> Path:
        return self.directory / "checkpoints"

    @property
    def universals(self) -> Path:
        return self.checkpoints / "universal"

    @property
    def origin(self) -> Path:
        """The checkpoint of another run whose weights this one began with."""
        return self.directory / "origin.json"

    @property
    def tracking(self) -> Path:
        """What trackers keep, each in a directory of its name."""
        return self.directory / "tracking"

    def tracker_state(self, name: str) -> Path:
        """How far a tracker has come."""
        return self.tracking / f"{name}.json"

    def universal(self, checkpoint: str) -> Path:
        """A checkpoint's form for another number of ranks."""
        return self.universals / checkpoint

    def checkpoint(self, step: int, attempt: int) -> Path:
        return self.checkpoints / checkpoint_name(step, attempt)

    @property
    def experiment(self) -> ExperimentPaths:
        return ExperimentPaths(self.directory.parent.parent)

    @property
    def attempts_directory(self) -> Path:
        return self.directory / "attempts"

    def attempt(self, number: int) -> AttemptPaths:
        return AttemptPaths(self.attempts_directory / str(number))

    def attempts(self) -> list[AttemptPaths]:
        """All attempts, oldest first."""
        return [AttemptPaths(path) for path in _numbered(self.attempts_directory)]


@dataclass(frozen=True)
class SubmissionPaths:
    """The files of one submission of an experiment."""

    directory: Path

    @property
    def number(self) -> int:
        return int(self.directory.name)

    @property
    def experiment(self) -> ExperimentPaths:
        return ExperimentPaths(self.directory.parent.parent)

    @property
    def plan(self) -> Path:
        return self.directory / "plan.json"

    @property
    def submission(self) -> Path:
        return self.directory / "submission.json"

    @property
    def package(self) -> Path:
        return self.directory / "hpcrun.zip"

    def script(self, array: int = 0, part: int = 0) -> Path:
        """The sbatch script of the plan's array number ``array``; of a part of it from 1 on."""
        return self.directory / f"script-{array}{f'-{part}' if part else ''}.sbatch"

    def scripts(self) -> list[Path]:
        """Every script that was written, by name."""
        return sorted(self.directory.glob("script-*.sbatch"))

    @property
    def journal(self) -> Path:
        return self.directory / "journal.jsonl"

    def batch_log_pattern(self, array: bool) -> str:
        """``sbatch --output`` of the batch step."""
        return f"{slurm_path(self.directory)}/slurm-{'%A_%a' if array else '%j'}.log"

    def batch_log(self, job_id: str) -> Path:
        """The batch step's log of ``123`` or ``123_4``."""
        return self.directory / f"slurm-{job_id}.log"

    def local_log(self, run: int | None = None) -> Path:
        """The local executor's own log, or the log of one run's supervisor under it."""
        return self.directory / ("local.log" if run is None else f"local-{run}.log")


@dataclass(frozen=True)
class ExperimentPaths:
    """The files of one experiment."""

    directory: Path

    @property
    def name(self) -> str:
        return self.directory.name

    @property
    def root(self) -> Path:
        return self.directory.parent

    @property
    def exists(self) -> bool:
        """Something was submitted, and may be read."""
        return os.path.isdir(self.submissions_directory)  # noqa: PTH112 - `is_dir` would raise

    @property
    def code(self) -> Path:
        return self.directory / "code"

    @property
    def submit_lock(self) -> Path:
        """A directory whose one file is named after the submit that holds the lock."""
        return self.directory / "submit.lock"

    @property
    def submissions_directory(self) -> Path:
        return self.directory / "submissions"

    def submission(self, number: int) -> SubmissionPaths:
        return SubmissionPaths(self.submissions_directory / str(number))

    def submissions(self) -> list[SubmissionPaths]:
        """All submissions, oldest first."""
        return [SubmissionPaths(path) for path in _numbered(self.submissions_directory)]

    def run(self, number: int) -> RunPaths:
        return RunPaths(self.directory.joinpath("runs", str(number)))

    @property
    def runs_directory(self) -> Path:
        return self.directory / "runs"

    def run_numbers(self) -> list[int]:
        """Numbers of the runs that have a directory, ascending."""
        try:
            names = os.listdir(self.runs_directory)  # noqa: PTH208 - ten thousand of them
        except FileNotFoundError:
            return []
        return sorted(int(name) for name in names if name.isdigit())


def checkpoint_name(step: int, attempt: int) -> str:
    """The directory of a checkpoint, on shared storage and in the nodes' own."""
    return f"step-{step:08d}-a{attempt}"


def experiment(root: Path, name: str) -> ExperimentPaths:
    """The experiment ``name`` under ``root``; it need not exist."""
    return ExperimentPaths(root / name)


def experiments(root: Path) -> list[ExperimentPaths]:
    """Every experiment under ``root``, by name."""
    if not root.is_dir():
        return []
    return [found for path in sorted(root.iterdir()) if (found := ExperimentPaths(path)).exists]


def named_run(path: Path) -> tuple[ExperimentPaths, int | None]:
    """Split ``NAME``, ``NAME/3`` or ``NAME/runs/3`` into the experiment and the run's number."""
    if not path.name.isdigit() or ExperimentPaths(path).exists:
        return ExperimentPaths(path), None
    run = RunPaths(path)
    above = ExperimentPaths(path.parent)
    return run.experiment if run.experiment.runs_directory == path.parent else above, run.number


def enclosing(path: Path) -> tuple[ExperimentPaths, int | None] | None:
    """Return the experiment that a path is or lies in, and the run if it lies in one."""
    for parent in (path, *path.parents):
        found = ExperimentPaths(parent)
        if found.exists:
            inside = path.parts[len(found.runs_directory.parts) :]
            is_run = path.is_relative_to(found.runs_directory) and inside and inside[0].isdigit()
            return found, int(inside[0]) if is_run else None
    return None


def slurm_path(path: Path) -> str:
    """A path for the ``--output`` of sbatch or srun, which would expand a ``%`` in it."""
    return str(path).replace("%", "%%")


def extension_cache(submission: SubmissionPaths) -> Path:
    """Compiled DeepSpeed operators, shared by all experiments under the root."""
    return submission.experiment.root / ".hpcrun" / "torch_extensions"


def _numbered(parent: Path) -> list[Path]:
    if not parent.is_dir():
        return []
    return sorted((path for path in parent.iterdir() if path.name.isdigit()), key=_number)


def _number(path: Path) -> int:
    return int(path.name)

"""The names of all files of experiments, submissions, runs and attempts.

::

    ROOT/
      .hpcrun/torch_extensions/KEY/     compiled DeepSpeed operators, of the user whose they are
      .hpcrun/environments/DIGEST/      frozen environments (hpcrun.state.environment)
      .hpcrun/suspects/UID.json         nodes whose hardware failed a job of this user's, for hours
      .deleted-NAME-RANDOM/             an experiment whose deletion is under way, or was cut off
      NAME/                             an experiment
        submit.lock/HOST:PID:TICKS      the submit that is under way
        annotations/HOST-UID.jsonl      tags and notes (hpcrun.state.annotation_log)
        .hpcrun/torch_extensions/KEY/   the same, where the root's are another user's
        points/SHA/3.json               what run 3 of a search took (hpcrun.state.chosen_point)
        code/SHA.tar.gz                 frozen code, by content, shared by submissions
        submissions/1/                  one `hpcrun submit`
          plan.json                     the frozen plan (hpcrun.state.plan.Plan)
          submission.json               who, when, job Python, code archive
          hpcrun.zip                    hpcrun itself, as it was at submission
          script-0.sbatch               what sbatch was given, one an array of the plan
          journal.jsonl                 requests to Slurm, and its answers (hpcrun.state.journal)
          slurm-JOB_TASK.log            output of the batch steps
          local.log, local-N.log        the same of the local executor: its own, and of run N; the
                                        latter also of runs that share a job
        runs/.deleted-3-RANDOM/         a run whose deletion is under way, or was cut off
        runs/3/                         one run; made when its first attempt starts
          intent.json                   finished, pruned or cancelled; every start reads it first
          point/point.json              the values that a search gave it (hpcrun.state.chosen_point)
          point/step-00000100-a0/       a parent's checkpoint, until the run starts
          origin.json                   the source of its weights (checkpoint.initialize_from)
          trials.jsonl                  of `hpcrun tune`: trials of configurations
                                        (hpcrun.tools.perf.on_nodes)
          ledger.jsonl                  events, by supervisors alone (hpcrun.state.ledger)
          work/                         what the program writes to relative paths: mirrors the code
          work/rank-00000/              the same of one rank (`working_directory: rank`)
          tracking/NAME/                files of a tracker: events, runs to be sent
          tracking/NAME.json            how far the tracker has come
          checkpoints/step-00000100-a1/ saved at step 100 by attempt 1; a0: of a search's parent
          checkpoints/universal/…/      the newest of them, for another number of ranks
          attempts/1/                   claimed by mkdir; written by that attempt alone
            launch.json                 for the workers (hpcrun.run.protocol.launch)
            launch-ROLE.json            the same of a further role; addresses.json: of all roles
            deepspeed.json              the final DeepSpeed configuration
            rank-00000.log              output of one rank
            agent-NODE.log              output of one node's agent
            tracker-NAME.log            output of the process that forwards metrics to a tracker
            warm.log                    output of ranks that wait for the next attempt, warm
            modules.txt                 what these import, because rank 0 did
            universal.log               output of DeepSpeed's conversion of a checkpoint
            log-sizes.jsonl             sizes of the ranks' logs over time
            telemetry-NODE.jsonl        samples of a node's load, by its agent
            metrics.jsonl               one line a logged step, by rank 0 (or the user's script)
            session.jsonl               restored, saved, finished (hpcrun.state.session_log)
            exit-00000.json             the end of a rank that failed
            profile-00000.json          a rank's profile (hpcrun.run.profile)
            trace-00000.json.gz         its trace, for Perfetto
            profile.json                what `hpcrun profile` made of them
            stacks-00000.txt            a rank's stacks when the run hung
            kept/NODE/                  on its way into work: written into a node's copy of the code
            orphaned.json               an agent lost its supervisor, and sees to what follows
            new-supervisor/             claimed by the node that leads in place of the batch host
            warm-ranks.json             where warm ranks wait, for such a supervisor
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, TypeVar

from hpcrun import shared_look
from hpcrun.errors import BrokenFile
from hpcrun.shared_dataclass import dataclass

T = TypeVar("T")

# Slurm's and the local executor's; a step's, `123_4.batch`, is of use to Slurm alone.
_JOB_ID = re.compile(r"[0-9]{1,18}(_[0-9]{1,18})?|local:[0-9]{1,18}")
_STEP_ID = re.compile(r"[0-9]{1,18}(_[0-9]{1,18})?(\.[0-9a-z]{1,18})?")
# Frozen code, by its digest.
_ARCHIVE = re.compile(r"[0-9A-Za-z][0-9A-Za-z_-]{0,99}[.]tar[.]gz")

# What the names of experiments and runs that are being deleted begin with.
DELETED = ".deleted-"


class NamedFile:
    """A file of a fixed name in a `Directory`."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, paths: Directory, kind: type[Directory]) -> Path:
        return paths.directory / self._name


class NamedFiles(Generic[T]):
    """The files of a `Directory` whose names differ in a part: a rank, or a node's name."""

    def __init__(self, form: str) -> None:
        self._form = form

    def __get__(self, paths: Directory, kind: type[Directory]) -> Callable[[T], Path]:
        return lambda part: paths.directory / self._form.format(part)


@dataclass(frozen=True)
class Directory:
    """A directory whose files have fixed names."""

    directory: Path

    @property
    def number(self) -> int:
        """The number that it is named after, where it is."""
        return int(self.directory.name)


class AttemptPaths(Directory):
    """The files of one attempt of a run."""

    launch = NamedFile("launch.json")
    deepspeed = NamedFile("deepspeed.json")
    metrics = NamedFile("metrics.jsonl")
    session = NamedFile("session.jsonl")
    log_sizes = NamedFile("log-sizes.jsonl")
    conversion_log = NamedFile("universal.log")
    warm_log = NamedFile("warm.log")
    modules = NamedFile("modules.txt")
    orphaned = NamedFile("orphaned.json")
    new_supervisor = NamedFile("new-supervisor")
    warm_ranks = NamedFile("warm-ranks.json")
    kept = NamedFile("kept")
    whole_profile = NamedFile("profile.json")
    addresses = NamedFile("addresses.json")
    role_launch = NamedFiles[str]("launch-{}.json")
    rank_log = NamedFiles[int]("rank-{:05d}.log")
    agent_log = NamedFiles[str]("agent-{}.log")
    tracker_log = NamedFiles[str]("tracker-{}.log")
    telemetry = NamedFiles[str]("telemetry-{}.jsonl")
    stacks = NamedFiles[int]("stacks-{:05d}.txt")
    profile = NamedFiles[int]("profile-{:05d}.json")
    exit_record = NamedFiles[int]("exit-{:05d}.json")

    @property
    def run(self) -> RunPaths:
        """The run that it belongs to."""
        return RunPaths(self.directory.parent.parent)

    @property
    def has_successor(self) -> bool:
        """A later attempt has been claimed. No host looks for its name (`hpcrun.shared_look`)."""
        return any(other.number > self.number for other in self.run.attempts())

    @property
    def rank_log_pattern(self) -> str:
        """The names of `rank_log` in srun's notation (``%t`` is the task's rank)."""
        return f"{slurm_path(self.directory)}/rank-%5t.log"

    def rank_logs(self) -> dict[int, Path]:
        """Return rank -> log file of those that exist, in the order of ranks."""
        found = sorted(self.directory.glob("rank-*.log"))
        return {int(path.stem[5:]): path for path in found if _RANK.fullmatch(path.stem[5:])}

    @property
    def agent_log_pattern(self) -> str:
        """The names of `agent_log` in srun's notation (``%N`` is the node)."""
        return f"{slurm_path(self.directory)}/agent-%N.log"

    def tracker_logs(self) -> list[Path]:
        """Return the logs that exist, by name; attempts of one start of a job share the first's."""
        return sorted(self.directory.glob("tracker-*.log"))

    def logs(self) -> list[Path]:
        """Return the logs of ranks, agents, trackers and conversions that exist, by name."""
        return sorted(self.directory.glob("*.log"))

    def records(self) -> list[Path]:
        """Return all other files of the attempt, by name."""
        found = (path for path in self.directory.glob("[!.]*") if not path.is_dir())
        return sorted(path for path in found if path.suffix != ".log")

    def telemetries(self) -> list[tuple[str, Path]]:
        """Return node and `telemetry` of each that exists, by name."""
        found = sorted(self.directory.glob("telemetry-*.jsonl"))
        return [(path.stem.removeprefix("telemetry-"), path) for path in found]

    def trace(self, rank: int) -> Path:
        return self.directory / self.trace_name(rank)

    @staticmethod
    def trace_name(rank: int) -> str:
        return f"trace-{rank:05d}.json.gz"

    def exit_records(self) -> list[Path]:
        return sorted(self.directory.glob("exit-*.json"))


class RunPaths(Directory):
    """The files of one run."""

    intent = NamedFile("intent.json")
    ledger = NamedFile("ledger.jsonl")
    trials = NamedFile("trials.jsonl")
    point = NamedFile("point/point.json")
    origin = NamedFile("origin.json")
    work = NamedFile("work")
    tracking = NamedFile("tracking")
    checkpoints = NamedFile("checkpoints")
    attempts_directory = NamedFile("attempts")
    rank_work = NamedFiles[int]("work/rank-{:05d}")
    """The ``work`` of one rank, where each has its own."""
    tracker_state = NamedFiles[str]("tracking/{}.json")
    tracker_problem = NamedFiles[str]("tracking/{}.problem")
    """The text that says why nothing more is sent to a tracker; absent if all is."""
    universals = NamedFile("checkpoints/universal")
    universal = NamedFiles[str]("checkpoints/universal/{}")
    """The form of a checkpoint, by its name, for another number of ranks."""

    @property
    def experiment(self) -> ExperimentPaths:
        return ExperimentPaths(self.directory.parent.parent)

    def rank_works(self) -> list[Path]:
        """Return each `rank_work` that exists, by rank."""
        return sorted(self.work.glob("rank-*"))

    def checkpoint(self, step: int, attempt: int) -> Path:
        return self.checkpoints / checkpoint_name(step, attempt)

    def attempt(self, number: int) -> AttemptPaths:
        return AttemptPaths(self.attempts_directory / str(number))

    def attempts(self) -> list[AttemptPaths]:
        """Return all attempts, oldest first."""
        return [AttemptPaths(path) for path in _numbered(self.attempts_directory)]


class SubmissionPaths(Directory):
    """The files of one submission of an experiment."""

    plan = NamedFile("plan.json")
    submission = NamedFile("submission.json")
    spec = NamedFile("spec.yaml")
    """The spec, where that was made of a command line."""
    package = NamedFile("hpcrun.zip")
    journal = NamedFile("journal.jsonl")
    batch_log = NamedFiles[str]("slurm-{}.log")
    """The batch step's log of ``123`` or ``123_4``."""

    @property
    def experiment(self) -> ExperimentPaths:
        return ExperimentPaths(self.directory.parent.parent)

    def script(self, array: int = 0, part: int = 0) -> Path:
        """The sbatch script of the plan's array number ``array``; of a part of it from 1 on."""
        return self.directory / f"script-{array}{f'-{part}' if part else ''}.sbatch"

    def scripts(self) -> list[Path]:
        """Return every script that was written, by name."""
        return sorted(self.directory.glob("script-*.sbatch"))

    def batch_log_pattern(self, array: bool) -> str:
        """``sbatch --output`` of the batch step."""
        return f"{slurm_path(self.directory)}/slurm-{'%A_%a' if array else '%j'}.log"

    def local_log(self, run: int | None = None) -> Path:
        """The local executor's own log, or the log of one run's supervisor under it."""
        return self.directory / ("local.log" if run is None else f"local-{run}.log")


class ExperimentPaths(Directory):
    """The files of one experiment."""

    annotations = NamedFile("annotations")
    code = NamedFile("code")
    points = NamedFile("points")
    submit_lock = NamedFile("submit.lock")
    submissions_directory = NamedFile("submissions")
    runs_directory = NamedFile("runs")

    @property
    def name(self) -> str:
        return self.directory.name

    @property
    def root(self) -> Path:
        return self.directory.parent

    @property
    def exists(self) -> bool:
        """Something was submitted, and may be read."""
        return shared_look.is_directory(self.submissions_directory)

    def frozen_code(self, facts: Any) -> Path | None:
        """Return the archive that ``code`` of a ``submission.json`` names; None if it names none.

        That file may be another user's: a path is no name, nor is what no file can be called.
        """
        name = facts.get("archive") if isinstance(facts, dict) else None
        return self.code / name if isinstance(name, str) and is_archive(name) else None

    def submission(self, number: int) -> SubmissionPaths:
        return SubmissionPaths(self.submissions_directory / str(number))

    def submissions(self) -> list[SubmissionPaths]:
        """Return all submissions, oldest first."""
        return [SubmissionPaths(path) for path in _numbered(self.submissions_directory)]

    def run(self, number: int) -> RunPaths:
        return RunPaths(self.directory.joinpath("runs", str(number)))

    def run_numbers(self) -> list[int]:
        """Return the numbers of the runs that have a directory, ascending."""
        found = (number(name) for name in shared_look.names(self.runs_directory))
        return sorted(one for one in found if one is not None)


def checkpoint_name(step: int, attempt: int) -> str:
    """Return the directory's name of a checkpoint, on shared storage and in the nodes' own."""
    return f"step-{step:08d}-a{attempt}"


def experiment(root: Path, name: str) -> ExperimentPaths:
    """Return the experiment ``name`` under ``root``; it need not exist."""
    return ExperimentPaths(root / name)


def experiments(root: Path) -> list[ExperimentPaths]:
    """Return every experiment under ``root``, by name."""
    found = entries(root)
    exist = shared_look.each(lambda one: one.exists, found)
    return [one for one, exists in zip(found, exist, strict=True) if exists]


def entries(root: Path) -> list[ExperimentPaths]:
    """Return what has the name of an experiment under ``root``, and may be none, by name."""
    names = sorted(name for name in shared_look.names(root) if not name.startswith(DELETED))
    return [ExperimentPaths(root / name) for name in names]


def named_run(path: Path) -> tuple[ExperimentPaths, int | None]:
    """Split ``NAME``, ``NAME/3`` or ``NAME/runs/3`` into the experiment and the run's number."""
    if number(path.name) is None or ExperimentPaths(path).exists:
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
            is_run = path.is_relative_to(found.runs_directory) and inside
            return found, number(inside[0]) if is_run else None
    return None


def is_job_id(value: object) -> bool:
    """Check whether something that was read is ``123``, ``123_4`` or ``local:PID``.

    What is none, such as an option or a path, is never used in a command or a file's name.
    """
    return isinstance(value, str) and _JOB_ID.fullmatch(value) is not None


def is_slurm_id(value: object) -> bool:
    """Check whether something is the id of a job or a step that Slurm's commands may be given."""
    return isinstance(value, str) and _STEP_ID.fullmatch(value) is not None


def is_archive(name: str) -> bool:
    """Check whether a file has the name of frozen code, in the ``code`` of an experiment."""
    return _ARCHIVE.fullmatch(name) is not None


def slurm_path(path: Path) -> str:
    """Escape a path for the ``--output`` of sbatch or srun, which would expand a ``%`` in it."""
    return str(path).replace("%", "%%")


def extension_caches(submission: SubmissionPaths) -> tuple[Path, Path]:
    """Return the directories of compiled DeepSpeed operators: the root's, the experiment's own."""
    experiment, name = submission.experiment, Path(".hpcrun", "torch_extensions")
    return experiment.root / name, experiment.directory / name


def number(name: str) -> int | None:
    """Return the number that a directory of a submission, a run or an attempt is named after.

    None for all other names: ``007`` and ``²`` are no such directory's.
    """
    return int(name) if _NUMBER.fullmatch(name) else None


_NUMBER = re.compile("0|[1-9][0-9]{0,8}")
_RANK = re.compile("[0-9]{1,9}")


def _numbered(parent: Path) -> list[Path]:
    """Return the numbered directories in one, in order; raise BrokenFile if it cannot be read."""
    try:
        names = shared_look.names(parent)
    except OSError as error:
        raise BrokenFile.of(parent, error) from None
    numbers = sorted(found for name in names if (found := number(name)) is not None)
    return [parent / str(found) for found in numbers]

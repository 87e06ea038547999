"""The ``notify`` block of a spec: who is told how a run ended."""

from __future__ import annotations

from dataclasses import field

from hpcrun.state.spec.spec_dataclass import spec_dataclass

FINISHED = "finished"
FAILED = "failed"
NEEDS_PERSON = "needs_person"

EVENTS = (FINISHED, FAILED, NEEDS_PERSON)


@spec_dataclass
class Notify:
    """Who is told how a run ended."""

    mail: str | None = None
    """Address that Slurm writes to (sbatch's ``--mail-user``). Slurm knows the job alone: it tells
    that an array has ended, not what became of each run."""

    mail_types: list[str] = field(default_factory=lambda: ["END", "FAIL", "INVALID_DEPEND"])
    """What it writes of (``--mail-type``). By default one mail an array, and none of requeues;
    ``ARRAY_TASKS`` adds one a run."""

    command: list[str] = field(default_factory=list)
    """A command that the batch node runs when a run has come to its end, with a JSON object on
    standard input and HPCRUN_EVENT, HPCRUN_RUN, HPCRUN_DIRECTORY, HPCRUN_ATTEMPT, HPCRUN_STEP and
    HPCRUN_MESSAGE in its environment. No shell reads it. It is run once an end and has a minute;
    the batch log has what it prints, and nothing depends on how it ends. A path is relative to this
    file, a name without a slash is looked up."""

    events: list[str] = field(default_factory=lambda: [*EVENTS])
    """What the command is run for: ``finished``; ``failed``, where a run stopped for good by what
    it did itself; ``needs_person``, where it stopped though it could not help it (too many lost
    nodes), or Slurm did not requeue it."""

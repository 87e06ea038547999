"""The ``notify`` block of a spec: who is told how a run ended."""

from __future__ import annotations

from hpcrun.shared_dataclass import field
from hpcrun.state.spec.spec_dataclass import spec_dataclass

FINISHED = "finished"
FAILED = "failed"
NEEDS_PERSON = "needs_person"

EVENTS = (FINISHED, FAILED, NEEDS_PERSON)


@spec_dataclass
class Notify:
    """Who is told how a run ended."""

    mail: str | None = None
    """Address that Slurm writes to (``--mail-user``): it tells that an array has ended, not what
    became of each run."""

    mail_types: list[str] = field(default_factory=lambda: ["END", "FAIL", "INVALID_DEPEND"])
    """What it writes of (``--mail-type``); ``ARRAY_TASKS`` adds a mail a run."""

    command: list[str] = field(default_factory=list)
    """A command that the batch node runs once a run has come to its end, for a minute at most, with
    a JSON object on standard input and HPCRUN_EVENT, HPCRUN_RUN, HPCRUN_DIRECTORY, HPCRUN_ATTEMPT,
    HPCRUN_STEP and HPCRUN_MESSAGE in its environment. No shell reads it. A path is relative to this
    file, a name without a slash is looked up."""

    events: list[str] = field(default_factory=lambda: [*EVENTS])
    """What the command is run for: ``finished``; ``failed``, where a run stopped by what it did
    itself; ``needs_person``, where it stopped though it could not help it, or Slurm did not requeue
    it."""

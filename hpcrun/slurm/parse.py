"""What Slurm's commands print, read by pure functions: no process is started here."""

from __future__ import annotations

import dataclasses
import datetime
import re
from dataclasses import dataclass

# The comment comes last in both, because it may hold the separator.
SQUEUE_FORMAT = "%i|%T|%r|%N|%S|%e|%M|%k"
SACCT_FIELDS = (
    *("JobID", "State", "Reason", "NodeList", "Start", "End", "Elapsed", "ExitCode"),
    "Comment",
)

# The state of a local process that has ended.
GONE = "GONE"
ENDED = frozenset(
    {
        *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "LAUNCH_FAILED"),
        *("NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "REVOKED", "TIMEOUT"),
        GONE,
    }
)
WAITING = frozenset({"PENDING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT"})
UNKNOWN = "UNKNOWN"

_ELAPSED = re.compile(r"(?:(?:(\d+)-)?(\d+):)?(\d+):(\d+)(?:\.\d+)?")
_NOTHING = ("", "(null)", "None", "N/A", "Unknown", "NONE", "None assigned")


@dataclass(frozen=True)
class JobState:
    """What Slurm says of one job or one element of an array.

    Attributes
    ----------
    job_id
        ``123`` or ``123_4``.
    state
        Slurm's word without additions, such as ``RUNNING`` or ``CANCELLED``; ``UNKNOWN`` when
        accounting never heard of the end of a job that the controller has forgotten.
    reason
        Why it waits, or why it ended so; empty when Slurm gives none.
    nodes
        The node list in Slurm's notation; empty before it starts.
    start, end
        Seconds since the epoch (of a waiting job the expected start, of a running one its time
        limit); None where Slurm does not say.
    elapsed
        Seconds.
    exit_code, signal
        How the batch script ended; None where Slurm does not say.
    comment
        The job's comment.
    source
        ``squeue`` or ``sacct``.
    known_at
        When Slurm said this, in seconds since the epoch, where it does not answer now; else None.
    """

    job_id: str
    state: str
    reason: str = ""
    nodes: str = ""
    start: float | None = None
    end: float | None = None
    elapsed: float | None = None
    exit_code: int | None = None
    signal: int | None = None
    comment: str = ""
    source: str = "squeue"
    known_at: float | None = None

    @property
    def ended(self) -> bool:
        """Whether it is known to be over (until somebody requeues it)."""
        return self.state in ENDED

    @property
    def waiting(self) -> bool:
        """Whether it waits in the queue."""
        return self.state in WAITING

    @property
    def live(self) -> bool:
        """Whether it waits, runs or is about to end."""
        return not self.ended and self.state != UNKNOWN


def parse_squeue(text: str) -> dict[str, JobState]:
    """Read what ``squeue --noheader --format=SQUEUE_FORMAT`` printed."""
    states: dict[str, JobState] = {}
    for line in text.splitlines():
        fields = line.split("|", SQUEUE_FORMAT.count("|"))
        if len(fields) <= SQUEUE_FORMAT.count("|"):
            continue
        names, state, reason, nodes, start, end, elapsed, comment = (
            part.strip() for part in fields
        )
        told = _told(state, reason, nodes, start, end, elapsed, comment)
        states.update(_for_each(names, told))
    return states


def parse_sacct(text: str) -> dict[str, JobState]:
    """Read what ``sacct --noheader --parsable2 --allocations --format=SACCT_FIELDS`` printed.

    Of several records of one id (a requeued job) the last counts.
    """
    states: dict[str, JobState] = {}
    for line in text.splitlines():
        fields = line.split("|", len(SACCT_FIELDS) - 1)
        if len(fields) < len(SACCT_FIELDS):
            continue
        names, state, reason, nodes, start, end, elapsed, code, comment = fields
        exit_code, _, signal = code.partition(":")
        told = dataclasses.replace(
            _told(state, reason, nodes, start, end, elapsed, comment),
            exit_code=int(exit_code) if exit_code.isdigit() else None,
            signal=int(signal) if signal.isdigit() else None,
            source="sacct",
        )
        states.update(_for_each(names, told))
    return states


def _told(
    state: str, reason: str, nodes: str, start: str, end: str, elapsed: str, comment: str
) -> JobState:
    """What both commands say of a job, whichever it is."""
    return JobState(
        job_id="",
        state=_word(state),
        reason=_text(reason),
        nodes=_text(nodes),
        start=parse_time(start),
        end=parse_time(end),
        elapsed=parse_elapsed(elapsed),
        comment=_text(comment),
    )


def _for_each(names: str, told: JobState) -> dict[str, JobState]:
    """The same of each element that a line stands for."""
    fields = vars(told)
    return {job_id: JobState(**{**fields, "job_id": job_id}) for job_id in expand_job_id(names)}


def merge(
    queue: dict[str, JobState], past: dict[str, JobState], *, controller_answered: bool
) -> dict[str, JobState]:
    """Put the controller's answer and accounting's together.

    The controller is right about what lives; accounting adds how a job ended. A job that only
    accounting believes to be alive, while the controller has answered without it, is ``UNKNOWN``.
    """
    merged = dict(queue)
    for job_id, state in past.items():
        current = queue.get(job_id)
        if current is None:
            if controller_answered and not state.ended:
                reason = f"accounting says {state.state}, the controller has forgotten the job"
                state = dataclasses.replace(state, state=UNKNOWN, reason=reason, end=None)
            merged[job_id] = state
        elif current.ended and state.ended:
            merged[job_id] = state
    return merged


def expand_job_id(text: str) -> list[str]:
    """``123``, ``123_4`` or ``123_[4,6-9%2]`` -> one id per element; steps give nothing."""
    match = re.fullmatch(r"(\d+)_\[([\d,:-]*)(?:%\d+)?\]", text)
    if not match:
        return [text] if re.fullmatch(r"\d+(?:_\d+)?", text) else []
    job, ranges = match.groups()
    elements: list[str] = []
    for piece in filter(None, ranges.split(",")):
        span, _, stride = piece.partition(":")
        first, _, last = span.partition("-")
        elements += [
            f"{job}_{index}"
            for index in range(int(first), int(last or first) + 1, int(stride or 1) or 1)
        ]
    return elements


def parse_elapsed(text: str) -> float | None:
    """``[[days-]hours:]minutes:seconds`` -> seconds."""
    match = _ELAPSED.fullmatch(text.strip())
    if not match:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def parse_time(text: str) -> float | None:
    """Seconds since the epoch, from that number or from ISO 8601 in local time."""
    if text.isdigit():
        return float(text) or None
    try:
        return datetime.datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None


def _word(state: str) -> str:
    # `CANCELLED by 1000`; `CANCELLED+` is what a narrow column makes of it.
    return state.split(maxsplit=1)[0].rstrip("+").upper() if state.strip() else UNKNOWN


def _text(field: str) -> str:
    field = field.strip()
    return "" if field in _NOTHING else field

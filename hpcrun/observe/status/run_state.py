"""A run's state as a pure function of the evidence: no file, clock or Slurm."""

from __future__ import annotations

from collections.abc import Sequence

from hpcrun import feature, slurm_state
from hpcrun.policy import causes, next_attempt, recovery
from hpcrun.shared_dataclass import dataclass, replace
from hpcrun.slurm import pending_reason
from hpcrun.slurm.queue import GONE, JobState
from hpcrun.state.journal import BROKEN, SUBMITTED, SUBMITTING, Job
from hpcrun.state.journal import WAITING as HELD
from hpcrun.state.ledger import CANCELLED as INTENT_CANCELLED
from hpcrun.state.ledger import FINISHED as INTENT_FINISHED
from hpcrun.state.ledger import PRUNED as INTENT_PRUNED
from hpcrun.state.ledger import Attempt
from hpcrun.text import timestamp

PLANNED = "planned"
WAITING = "waiting"
PENDING = "pending"
RUNNING = "running"
RESTARTING = "restarting"
REQUEUED = "requeued"
COMPLETED = "completed"
FAILED = "failed"
CANCELLED = "cancelled"
PRUNED = "pruned"
UNKNOWN = "unknown"
# Those of runs that are over, and nothing went wrong.
GOOD_ENDS = (COMPLETED, PRUNED)

STATES = (
    *(PLANNED, WAITING, PENDING, RUNNING, RESTARTING, REQUEUED),
    *(COMPLETED, FAILED, CANCELLED, PRUNED, UNKNOWN),
)

CLOCK_SKEW = 60.0
# The reason of a run whose ranks have not started.
PREPARING = "preparing its nodes"
# Of a job whose script has ended: our record says more.
_AS_RECORDED = (slurm_state.FAILED, slurm_state.COMPLETED, slurm_state.CANCELLED, GONE)
# Stands in a reason between the reason itself and when Slurm expects the start.
EXPECTED = "; Slurm expects it at "


@dataclass(frozen=True)
class RunEvidence:
    """The evidence about one run: its last submission, attempts, intent and job."""

    submission: Job | None = None
    attempts: Sequence[Attempt] = ()
    intent: str | None = None
    job: JobState | None = None
    """The cluster's answer; None when it does not know the job, or was not asked."""
    silence: str | None = None
    """Why the cluster did not answer, so that a missing ``job`` proves nothing."""
    updated: float | None = None
    """Time of the newest evidence on disk, in seconds since the epoch."""
    unseen: bool = False
    """Its job completed so lately that this host may not see yet what it has recorded."""
    broken: str | None = None
    """Why the ledger or the intent says nothing: one of them is not what hpcrun writes."""

    @property
    def current(self) -> Attempt | None:
        """The newest attempt, unless a later submission has not begun its own yet."""
        submission = self.submission
        if not self.attempts or (submission is not None and submission.event == HELD):
            return None
        last = self.attempts[-1]
        if submission is None or submission.event != SUBMITTED or not last.started:
            return last
        if last.job_id == submission.job_id:
            return last
        number = last.submission
        if number is not None and number != submission.paths.number:
            return last if number > submission.paths.number else None
        began = last.began
        if began is not None and began + CLOCK_SKEW < submission.time:
            return None
        return last


@dataclass(frozen=True)
class Verdict:
    """A run's state, one of `STATES`, explained for a person where necessary."""

    state: str
    reason: str | None = None
    over: bool = False
    """Nothing more will happen to the run by itself."""

    def with_reason(self, more: str | None, sign: str = "; ") -> Verdict:
        """Return the same with more words behind its reason, if there are any."""
        if not more:
            return self
        return replace(self, reason=_notices(self.reason, more, sign=sign))


_SUSPENDED = "Slurm has suspended its job: it stands still until Slurm or whoever did it resumes it"
_UNSEEN = Verdict(UNKNOWN, "its job completed; what it recorded is not seen on this host yet")
_CANCELLED_IN_SLURM = Verdict(CANCELLED, "its job was cancelled in Slurm", over=True)


def decide(evidence: RunEvidence) -> Verdict:
    """Return the state that follows from the evidence.

    The disk outweighs Slurm, which decides where the disk is silent. A run whose job is unknown is
    ``unknown``, never ``failed``. The reason contains the age of a stale answer from Slurm.
    """
    if evidence.job is not None and evidence.job.known_at is not None:
        evidence = _without_old_news(evidence, evidence.job.known_at)
    submission = evidence.submission
    if submission is not None and submission.ended and submission.is_packed:
        # It has ended for good, whatever becomes of the other runs of its job.
        evidence = replace(evidence, job=None, silence=None)
    verdict, job = _decide(evidence), evidence.job
    if verdict.over or job is None or job.known_at is None:
        return verdict
    mark = f"{evidence.silence or 'Slurm was not asked'}; as of {timestamp(job.known_at)}"
    return verdict.with_reason(mark)


def _without_old_news(evidence: RunEvidence, known_at: float) -> RunEvidence:
    """Drop an answer of Slurm's that is older than the ledger's last record."""
    if (last := evidence.current) is None:
        return evidence
    recorded = max(float(event.get("time") or 0.0) for event in (last.started, last.end))
    return evidence if recorded <= known_at else replace(evidence, job=None)


def _decide(evidence: RunEvidence) -> Verdict:
    if evidence.broken:
        return Verdict(UNKNOWN, evidence.broken)
    last = evidence.current
    if evidence.intent == INTENT_FINISHED or (last and last.outcome == "completed"):
        found = None
        if last is not None:
            smaller = next_attempt.smaller_batch(last)
            own = last.end.get("doubt"), last.alone, last.overwriting, smaller
            found = _notices(*own, *_of_features(last))
        return Verdict(COMPLETED, found, over=True)
    if evidence.intent == INTENT_PRUNED or (last and last.outcome == "pruned"):
        return Verdict(PRUNED, last.cause.get("message") if last else None, over=True)
    if evidence.intent == INTENT_CANCELLED:
        return _cancelled(evidence, last)
    if last is None:
        return _before_attempt(evidence)
    return _attempt_ended(evidence, last) if last.ended else _attempt_open(evidence, last)


def _cancelled(evidence: RunEvidence, last: Attempt | None) -> Verdict:
    submission, job = evidence.submission, evidence.job
    queued = submission is not None and submission.event == SUBMITTED and not submission.is_local
    if (last is not None and last.ended) or (last is None and not queued):
        return Verdict(CANCELLED, _who_cancelled(last), over=True)
    if job is None and evidence.silence:
        return Verdict(CANCELLED, _as_of(evidence))
    is_packed = submission is not None and submission.is_packed
    if job is None or not job.is_alive or (last is None and is_packed):
        return Verdict(CANCELLED, over=True)
    is_own = queued and submission is not None and not (is_packed or submission.foreground)
    if is_own and (job.is_waiting or job.state == slurm_state.RUNNING):
        # A job that scancel reached is COMPLETING or over.
        again = f"Slurm says {job.state} of its job: where that lasts, `hpcrun cancel` it again"
        return Verdict(CANCELLED, again)
    return Verdict(CANCELLED, "its job is still ending")


def _who_cancelled(last: Attempt | None) -> str | None:
    """Return how the last attempt was cancelled, where that was not by `hpcrun cancel`."""
    message = last.cause.get("message") if last and last.outcome == "cancelled" else None
    return None if message in (None, causes.BY_USER) else str(message)


def _before_attempt(evidence: RunEvidence) -> Verdict:
    submission, job = evidence.submission, evidence.job
    if submission is None:
        return Verdict(PLANNED)
    if submission.event == SUBMITTING:
        return Verdict(
            UNKNOWN, "sbatch was called and its answer is not on record; repeat the submit"
        )
    if submission.event == BROKEN:
        return Verdict(UNKNOWN, submission.message)
    if submission.event == HELD:
        host, pid = submission.record.get("host"), submission.record.get("pid")
        return Verdict(WAITING, f"waits for room in the queue, in the submit on {host} ({pid})")
    if submission.event != SUBMITTED:
        return Verdict(PLANNED, f"refused: {submission.message or 'no reason recorded'}")
    if submission.ended and submission.is_packed:
        return _failed(submission.message or "it ended before an attempt began")
    if job is None:
        if evidence.silence:
            return Verdict(WAITING if submission.is_local else PENDING, _as_of(evidence))
        return Verdict(UNKNOWN, f"Slurm does not know job {submission.job_id} (any more)")
    if submission.is_local:
        if job.is_alive:
            return Verdict(WAITING, "waits for its turn on this machine")
        if submission.ended and submission.message:
            return _failed(submission.message)
        what = "its supervisor" if submission.ended else "the local executor"
        return _failed(f"{what} ended before an attempt began; see `hpcrun logs --stream batch`")
    if job.is_waiting or job.state == slurm_state.CONFIGURING:
        return Verdict(PENDING, _words(job))
    if job.is_over:
        if job.state == slurm_state.CANCELLED:
            return _CANCELLED_IN_SLURM
        if evidence.unseen:
            return _UNSEEN
        code = f", exit code {job.exit_code}" if job.exit_code else ""
        return _failed(
            f"the job ended (Slurm: {job.state}{code}) before an attempt began; "
            "see `hpcrun logs --stream batch`"
        )
    if job.is_alive:
        if submission.foreground:
            return Verdict(WAITING, "waits for its turn in this allocation")
        if submission.is_packed:
            return Verdict(WAITING, "waits for its turn in its job, which other runs share")
        return Verdict(RUNNING, "the job has started, its attempt is not seen yet")
    return Verdict(UNKNOWN, job.reason or None)


def _attempt_ended(evidence: RunEvidence, last: Attempt) -> Verdict:
    job = evidence.job
    is_alive = job is not None and job.is_alive
    message = last.cause.get("message")
    reason = str(message) if message else None
    if last.outcome == "cancelled":
        return Verdict(CANCELLED, _who_cancelled(last), over=True)
    if job is not None and job.is_waiting:
        return Verdict(REQUEUED, _words(job) or reason)
    goes_on = last.action in recovery.GOES_ON
    if goes_on and is_alive:
        return Verdict(RESTARTING, reason)
    if last.action == recovery.STOP:
        return _failed(f"{reason}; stopped: {(last.decided or {}).get('reason')}")
    if goes_on or last.outcome == "stopped":
        if job is None and evidence.silence:
            return Verdict(UNKNOWN, _as_of(evidence))
        if job is not None and job.state == slurm_state.CANCELLED:
            return _CANCELLED_IN_SLURM
    if last.outcome == "stopped":
        if is_alive:
            return Verdict(RESTARTING, reason)
        return _failed(f"{reason or 'stopped'}; submit it again to go on")
    if job is not None and job.is_over:
        if job.state == slurm_state.CANCELLED and last.kind == "signal":
            return _CANCELLED_IN_SLURM
        if job.state not in _AS_RECORDED:
            reason = f"{reason or 'failed'} (Slurm: {job.state})"
    return _failed(reason)


def _attempt_open(evidence: RunEvidence, last: Attempt) -> Verdict:
    job, no_end = evidence.job, f"and the ledger has no end of attempt {last.number}"
    if job is None:
        if evidence.silence:
            return Verdict(RUNNING, _as_of(evidence))
        return Verdict(UNKNOWN, f"Slurm does not know job {last.job_id} (any more), {no_end}")
    if job.is_waiting:
        return Verdict(REQUEUED, _words(job))
    if job.is_over:
        if job.state == slurm_state.CANCELLED:
            return _CANCELLED_IN_SLURM
        if evidence.unseen:
            return _UNSEEN
        gone = job.state == GONE
        what = "its process is gone" if gone else f"its job is over (Slurm: {job.state})"
        return _failed(f"{what}, {no_end}")
    if not job.is_alive:
        return Verdict(UNKNOWN, job.reason or None)
    suspended = _SUSPENDED if job.state == slurm_state.SUSPENDED else None
    beginning = last.beginning if last.workers_started else PREPARING
    smaller = next_attempt.smaller_batch(last)
    others = last.overwriting, smaller, *_of_features(last)
    return Verdict(RUNNING, _notices(suspended, beginning, *others))


def _of_features(attempt: Attempt) -> list[str | None]:
    every = feature.every().values() if attempt.of_features else ()
    return [one.notice(attempt) for one in every]


def _notices(*sentences: str | None, sign: str = "; ") -> str | None:
    return sign.join(filter(None, sentences)) or None


def _failed(reason: str | None) -> Verdict:
    return Verdict(FAILED, reason, over=True)


def _as_of(evidence: RunEvidence) -> str | None:
    if evidence.updated is None:
        return evidence.silence
    return f"{evidence.silence}; as of {timestamp(evidence.updated)}"


def _words(job: JobState) -> str | None:
    if job.state == slurm_state.CONFIGURING:
        return "its nodes are being configured"
    if not job.reason:
        return None
    words = pending_reason.in_words(job.reason)
    if job.start is None or pending_reason.NEVER in words:
        return words
    return f"{words}{EXPECTED}{timestamp(job.start)[:-3]}"

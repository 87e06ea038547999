"""Sentences about a run and its attempts.

`attempts` reads the files, but for the log of a program whose steps nothing reads, and the metrics
that `data_wait` judges.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hpcrun import feature
from hpcrun.fields import INDEX, NUMBER
from hpcrun.observe.diagnosis import unread_progress
from hpcrun.observe.diagnosis.attempts import AttemptStory, RunStory, one_line
from hpcrun.observe.diagnosis.goodput import WORDS, Goodput
from hpcrun.observe.status import run_state
from hpcrun.policy import causes, frameworks, next_attempt, node_health, recovery
from hpcrun.shared_dataclass import dataclass
from hpcrun.slurm import pending_reason
from hpcrun.state import files, job_changes, ledger, session_log
from hpcrun.state.layout import AttemptPaths
from hpcrun.state.ledger import Attempt
from hpcrun.state.metrics_file import parse
from hpcrun.text import age, listed, plural, ranges, timestamp

_OUTCOMES = {"failed": "failed", "stopped": "was stopped", "cancelled": "was cancelled"}
_EVENTS = {
    "save_failed": ("A save at step {} failed", "Saves at steps {} failed"),
    "save_skipped": ("Nothing was saved at step {}", "Nothing was saved at steps {}"),
    "quarantined": ("Checkpoint {} was set aside", "Checkpoints {} were set aside"),
    "passed_over": ("Checkpoint {} was passed over", "Checkpoints {} were passed over"),
    "pattern_dropped": ("Of progress.pattern", "Of progress.pattern"),
}
_MOST = 6
# The end of the metrics that is read, the steps that it takes, and a share that is told.
_TAIL_BYTES, _LEAST_STEPS = 1 << 18, 5
STARVED = 0.1
_MOST_RANKS = 8
_LOADER_ADVICE = (
    "more num_workers of session.loader (with resources.cpus_per_task for them), a cheaper "
    "dataset[index], or faster storage would shorten them (docs/data.md)"
)


def headline(run: RunStory) -> str:
    """Describe the run's state and the number of its attempts in one line."""
    status, number = run.status, len(run.attempts)
    found = status.state
    if number:
        if found == run_state.COMPLETED:
            found += f" in {plural(number, 'attempt', ',')}"
        elif status.over:
            found += f" after {plural(number, 'attempt', ',')}"
        else:
            found += f", attempt {run.attempts[-1].attempt.number}"
    parts = [found, f"{steps(run.replayed)} replayed" if run.replayed else ""]
    if not any(one.message and one.message in one_line(status.reason) for one in run.attempts):
        parts.append(pending_reason.of_job(one_line(status.reason), status.job_id))
    return f"{status.name}: {'; '.join(filter(None, parts))}"


def tell_changes(run: RunStory) -> str:
    """Describe what `hpcrun update` has changed of the run's job; empty of nothing."""
    job = run.selected.submission
    if job is None or not job.changes:
        return ""
    when = timestamp(max(one.time for one in job.changes.values()))
    return f"`hpcrun update` changed its job to {job_changes.in_words(job.changes)} ({when})."


def attempt(one: AttemptStory, run: RunStory, now: float) -> list[str]:
    """Describe an attempt: its end, how far it came, what went wrong before, what followed."""
    spares, is_newest = one.attempt.spare_nodes, one is run.attempts[-1]
    features = feature.every().values() if one.attempt.of_features else ()
    parts = [
        _beginning(one, run),
        _packages(one),
        _progress(one),
        f"It had {smaller}." if (smaller := next_attempt.smaller_batch(one.attempt)) else "",
        f"{listed(spares, _MOST)} stood by." if spares else "",
        _did_nothing(one, run) or (_read_from(one, run) if is_newest else ""),
        *(_never_came(run) if is_newest else ()),
        _alone(one, run),
        _health(one),
        *_copied(one),
        *(line for each in features for line in each.tell(one.attempt)),
        _straggler(one),
        bad_batch(one.attempt),
        data_wait(run.selected.paths.attempt(one.attempt.number)) if is_newest else "",
        *_events(one.events),
        *_tell_files(one),
        *_roles(one),
        f"Nobody was told: {told}." if (told := one.attempt.not_told) else "",
        _followed(one, run),
    ]
    return [end(one, run, now), *filter(None, parts)]


def _roles(one: AttemptStory) -> list[str]:
    """Describe which ranks of roles ended badly while the run went on."""
    found = one.attempt.roles
    told = [one_line(f"{ledger.role_sentence(each)}.") for each in found[:_MOST]]
    told = [line[:1].upper() + line[1:] for line in told]
    rest = f"… and {len(found) - _MOST:,} more: {ledger.roles_summary(found)}."
    return [*told, *([rest] if len(found) > _MOST else [])]


def notice(run: RunStory) -> str:
    """Describe what was guessed as the newest attempt's ranks were started; once a run."""
    if not run.attempts or not (found := run.attempts[-1].attempt.notice):
        return ""
    return f"Of the network: {one_line(found)}."


def trackers(run: RunStory) -> list[str]:
    """Describe which trackers lack metrics of the run, why, and how they get them."""
    submission, planned = run.selected.planned.paths, run.selected.run
    python = planned.environment.python if planned.container is None else "python"
    return [
        f"{name} has not got all metrics: {problem}. Once that is mended the run's next start "
        "sends them; where none comes, in the job's environment: "
        f"PYTHONPATH={submission.package} {python} -m hpcrun.run.tracker {name} "
        f"{submission.directory} --run {planned.number} --once"
        for name, problem in run.tracker_problems.items()
    ]


def fabric(run: RunStory) -> list[str]:
    """Describe what is wrong with the links of the newest attempt's nodes, and NCCL's adapters."""
    found = run.attempts[-1].attempt.fabric if run.attempts else None
    if found is None:
        return []
    findings = found["findings"]
    told = [f"Warning, node {one['node']}: {one['message']}." for one in findings[:_MOST]]
    more = (found.get("count") or len(findings)) - len(told)
    rest = [f"… and {more:,} more; the job's log has them."] if more > 0 else []
    return [one_line(line) for line in (*told, *rest, *(f"{one}." for one in found["choices"]))]


def end(one: AttemptStory, run: RunStory, now: float) -> str:
    """Describe what ended an attempt, and when."""
    found = one.attempt
    if found.ended is None:
        return _open(one, run, now)
    name, at = f"Attempt {found.number}", _when(found.ended.get("time"), now)
    if found.outcome == "completed":
        return f"{name} completed the run{at}."
    if found.outcome == causes.PRUNED:
        return f"{name} was pruned{at}: {one.message}."
    outcome = _OUTCOMES.get(str(found.outcome), str(found.outcome))
    return f"{name} {outcome}{at}, {one.kind}: {one.message}{_first(one)}."


def spent(found: Goodput) -> str:
    """Describe where a run's time went, the useful part first."""
    seconds = {what: getattr(found, kind) for kind, what in WORDS.items()}
    parts = [
        f"{100 * value / found.wall:.0f} % {what}"
        for what, value in seconds.items()
        if value >= 0.005 * found.wall
    ]
    unknown = " What of the running was useful is not known." if found.running else ""
    return f"Of {age(found.wall)} since it was submitted: {', '.join(parts)}.{unknown}"


def steps(number: int) -> str:
    """``1 step``, ``2,000 steps``."""
    return plural(number, "step", ",")


def _when(moment: Any, now: float) -> str:
    """`` 5 min ago (2026-01-31 12:00:00)``, with the space; empty if unknown."""
    if not isinstance(moment, (int, float)):
        return ""
    return f" {age(now - moment)} ago ({timestamp(moment)})"


def _open(one: AttemptStory, run: RunStory, now: float) -> str:
    """Describe an attempt that has no end."""
    found = one.attempt
    began = f"Attempt {found.number} began{_when(found.began, now)}"
    if one is not run.attempts[-1]:
        return f"{began}, and its end is not on record."
    if run.status.state == run_state.CANCELLED:
        return f"{began}; it was cancelled before its end could be recorded."
    if run.status.over or run.status.state == run_state.UNKNOWN:
        return f"{began}, and its end is not on record: {run.status.reason or run.status.state}."
    if found.stopping:
        name = found.stopping.get("signal")
        asked = f"{found.stopping.get('reason')}" + (f", {name}" if name else "")
        return f"{began}; it is asked to save and leave ({asked})."
    return f"{began}; it is {run.status.state}."


def _first(one: AttemptStory) -> str:
    """Name the first failing rank and its node, unless the message names them."""
    rank, node = one.attempt.cause.get("rank"), one.attempt.cause.get("node")
    if rank is None or f"rank {rank}" in one.message:
        return ""
    return f" (first: rank {rank}" + (f" on {node})" if node else ")")


def _beginning(one: AttemptStory, run: RunStory) -> str:
    """Describe how a script or command went on from earlier attempts."""
    messages = [found["message"] for found in (one.attempt.resume, one.attempt.began_over) if found]
    came_back = one.attempt.number > 1 and one.attempt.outcome == "completed" and not messages
    is_program = run.selected.run.entry.kind != "function"
    if came_back and is_program and all(each.reached is None for each in run.attempts):
        messages = [
            "began over, or went on from what it finds by itself: which of the two is not known, "
            "as no step of it is read and recovery.resume does not say how it goes on"
        ]
    return " ".join(f"It {one_line(message)}." for message in messages)


def _packages(one: AttemptStory) -> str:
    """Describe how the job's Python differed from what it was at submission."""
    changed = one.attempt.started.get("packages_changed") or []
    text = f"Its Python had other packages than at submission: {listed(changed, 8)}."
    return text if changed else ""


def _progress(one: AttemptStory) -> str:
    found = one.attempt
    if one.other_unit is not None:
        return (
            f"Its steps ({one_line(one.other_unit)}) are not those that later attempts count, and "
            "are left out."
        )
    if found.workers_started is None and one.reached is None:
        return "Its ranks were never started." if found.ended else ""
    parts = [] if one.restored is None else [f"began at step {one.restored:,}"]
    if one.replayed:
        parts.append(f"did {steps(one.replayed)} over again")
    if one.reached is not None:
        parts.append(f"reached step {one.reached:,}")
    if not parts:
        return ""
    text = "It " + (", ".join(parts[:-1]) + " and " if len(parts) > 1 else "") + parts[-1]
    if one.lost is None:
        by_saves = one.ended_badly and one.kept is not None
        known = ", as its last save that was seen says; what was lost is not known"
        return f"{text}{known if by_saves else ''}."
    saved = f"its newest checkpoint was of step {one.kept:,}" if one.kept else "nothing was saved"
    return f"{text}; {saved}: {steps(one.lost) if one.lost else 'nothing'} lost."


def _did_nothing(one: AttemptStory, run: RunStory) -> str:
    """Warn of an attempt that ended well and showed no step, where an earlier one did."""
    before = [each for each in run.attempts if each.attempt.number < one.attempt.number]
    furthest = max((each.reached or 0 for each in before), default=0)
    if not furthest or one.reached is not None or one.attempt.outcome != "completed":
        return ""
    shown = f"`hpcrun logs {run.status.name} --attempt {one.attempt.number}`"
    return (
        f"It showed no step, though step {furthest:,} had been reached before: it may have done "
        f"nothing, and {shown} shows what it printed."
    )


def _alone(one: AttemptStory, run: RunStory) -> str:
    found = one.attempt.alone
    if found is None:
        return ""
    if run.selected.run.entry.framework == frameworks.MPI:
        return (
            f"{found[0].upper()}{found[1:]}, as their MPI does not know what srun prepared for "
            "them: name another type with resources.mpi (see docs/frameworks.md)."
        )
    return (
        f"{found[0].upper()}{found[1:]}, as nobody listened on MASTER_ADDR:MASTER_PORT. If they "
        "were to train together, say what they train with, as 'framework: accelerate', "
        "'framework: mpi' or 'framework: tensorflow' does (see docs/frameworks.md); 'framework: "
        "none' says that this is meant."
    )


def _read_from(one: AttemptStory, run: RunStory) -> str:
    """Say where the progress of a program without a session is read."""
    number, selected = one.attempt.number, run.selected
    if "permanent" in one.attempt.cause:
        return ""
    well = one.attempt.outcome == "completed"
    if clause := unread_progress.unmatched(selected, number, well=well):
        return f"Its {clause}."
    if one.read_from is None:
        return ""
    source, path = one.read_from.get("source"), one.read_from.get("path")
    if source is None:
        if line := unread_progress.of_run(selected, number):
            return f"It prints steps that hpcrun does not read; with this it does: {line}"
        if not (well or unread_progress.had_time(selected, number)):
            return ""
        is_lightning = selected.run.entry.framework == "lightning"
        logger = "give it a CSVLogger or Lightning's TQDMProgressBar, " if is_lightning else ""
        return (
            f"It shows no steps that hpcrun reads: {logger}"
            "set progress.pattern, or have it append lines to $HPCRUN_METRICS_FILE (docs/spec.md)."
        )
    if source == "metrics_file" and one.reached is None:
        return "No line that it appended to $HPCRUN_METRICS_FILE has a whole number as its 'step'."
    text = (
        f"Its progress is read from {one_line(path) or 'what rank 0 prints'} ({one_line(source)})."
    )
    silent = one.attempt.ended and not one.attempt.end.get("metrics")
    if silent and (line := unread_progress.of_run(selected, number, metrics=True)):
        text += f" It prints metrics that hpcrun does not read; with this it does: {line}"
    elif path and (more := unread_progress.further(selected, number, one.reached or 0)):
        text += f" {more}"
    return text


def _never_came(run: RunStory) -> Iterator[str]:
    for sentence in unread_progress.never_came(run.selected, run.status):
        yield f"{sentence[0].upper()}{sentence[1:]}."


def _health(one: AttemptStory) -> str:
    """Describe what the check of the nodes found, and was decided on it."""
    if (found := one.attempt.health) is None:
        return ""
    # Of links, `fabric` tells.
    links = [each["message"] for each in (one.attempt.fabric or {}).get("findings", ())]
    own = [each for each in found["findings"] if each["message"] not in links]
    words = [f"node {each['node']}: {each['message']}" for each in own]
    told = f"{listed(words, _MOST, '; ', '; and {} more')}; " if words else ""
    if found.get("nodes"):
        # What ended the attempt is told already.
        told = ""
    went_on = "it went on: " if found["action"] == node_health.GO_ON else ""
    return one_line(f"The check of its nodes: {told}{went_on}{found['reason']}.")


def _copied(one: AttemptStory) -> Iterator[str]:
    """Describe what the nodes copied to their own disks, and what they did not."""
    if (found := one.attempt.copied) is None:
        return
    text = ledger.copies_sentence(found)
    yield one_line(f"{text[0].upper()}{text[1:]}.")
    notes = found["notes"]
    if notes:
        left = found["count"] - 1
        more = f" (and {left:,} more)" if left > 0 else ""
        yield one_line(f"Not staged, node {notes[0]}{more}.")


def _straggler(one: AttemptStory) -> str:
    found = one.attempt.straggler
    if found is None:
        return ""
    loads = found.get("loads", 0)
    return (
        f"Rank {found['rank']} on {found['node']} held up the others: each of them waited for "
        f"{found['others_wait']:.0%} of the time or more, it for {found['waits']:.0%}."
        + (
            f" It waited for its data for {loads:.0%}: {_LOADER_ADVICE}."
            if loads >= STARVED
            else ""
        )
    )


def bad_batch(one: Attempt) -> str:
    """Describe the batch with which an attempt went bad; empty if it did not, or is unknown."""
    found = one.end.get("bad_step") or {}
    samples, step = found.get("samples"), found.get("step")
    if not samples or step is None:
        return ""
    epoch = f" of epoch {found['epoch'] + 1:,}" if found.get("epoch") is not None else ""
    what = f"global batch {found.get('batch') or 0:,}, samples {samples[0]:,} to {samples[-1]:,}"
    if (one.decided or {}).get("left_out"):
        return f"Left out from then on: {what}{epoch}, on which step {step:,} trained."
    return f"Step {step:,} trained on {what}{epoch}."


def _tell_files(one: AttemptStory) -> Iterator[str]:
    """Tell what the program wrote in its node's copy of the code."""
    if shared := one.attempt.shared_write:
        yield (
            f"Ranks {','.join(ranges(shared['ranks']))} wrote one file, {shared['file']}: what one "
            "writes, another may destroy. `working_directory: rank` gives each its own directory."
        )
    found = one.attempt.kept or {}
    if found.get("files"):
        names = listed([*found.get("names", ()), *found.get("apart", ())], _MOST)
        yield f"Kept of what it wrote in its code's directory: {names}."
    if found.get("apart"):
        yield "Nodes wrote different files of one name there: each is kept, with its node's name."
    if found.get("failed"):
        yield f"Not kept: {one_line(listed(found['failed'], _MOST))}."


def _events(events: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield one sentence for all events that differ only in the step."""
    shared: dict[tuple[str, str], list[str]] = {}
    for event in events:
        place = event.get("checkpoint") or event.get("step")
        message = one_line(event.get("message")).rstrip(".")
        shared.setdefault((str(event["event"]), message), []).append(str(place))
    for (kind, message), places in shared.items():
        text = _EVENTS[kind][len(places) > 1].format(listed(places, _MOST))
        yield f"{text}: {message}." if message else f"{text}."


def _followed(one: AttemptStory, run: RunStory) -> str:
    """Describe what hpcrun did about the end, and when the next attempt began."""
    found = one.attempt
    if found.ended is None or found.outcome == "completed":
        return ""
    later = [other.attempt for other in run.attempts if other.attempt.number > found.number]
    following = later[0] if later else None
    action, decided = found.action, found.decided or {}
    reason, more = decided.get("reason"), next_attempt.growth_words(decided.get("grow") or {})
    did = then = ""
    unqueued = action == recovery.REQUEUE and str(found.job_id).startswith("local:")
    if unqueued and following is not None and following.submission == found.submission:
        did = "hpcrun started it again"
    elif unqueued:
        did = "hpcrun left it as it was: this machine has no queue to put it back into"
    elif action == recovery.REQUEUE:
        exclude = ", ".join(decided.get("exclude") or ())
        did = "hpcrun requeued it" + (f", excluding {exclude}" if exclude else "") + more
    elif action == recovery.RESTART:
        did = "hpcrun restarted it in place" + _with_spares(found, following) + more
        if following is not None and ledger.INSTEAD_OF in following.started:
            started = following.started
            did += f", led by {started['host']} in place of the batch host"
    elif action == recovery.STOP:
        did = f"hpcrun stopped it: {reason}"
    elif action == recovery.NOTHING and found.outcome not in (causes.CANCELLED, causes.PRUNED):
        did = f"hpcrun left it to others: {reason}"
    if following is not None:
        gap, ended, began = "", found.end.get("time"), following.began
        if ended is not None and began is not None:
            gap = f" {age(began - ended)} later"
        resubmitted = following.submission != found.submission
        again = ", after it was submitted again" if resubmitted else ""
        then = f"attempt {following.number} began{gap}{again}"
    elif action in recovery.GOES_ON and not unqueued:
        then = "no attempt came of it" if run.status.over else "the next attempt has not begun"
    text = "; ".join(filter(None, [did, then]))
    return f"{text if did else text[:1].upper() + text[1:]}." if text else ""


def _with_spares(one: Attempt, following: Attempt | None) -> str:
    """``, with n4 for n2`` or ``, without n2`` if the next attempt had other nodes."""
    before, after = one.nodes, following and following.nodes
    if not before or not after:
        return ""
    gone = ", ".join(node for node in before if node not in after)
    came = ", ".join(node for node in after if node not in before)
    if not gone:
        return ""
    return f", with {came} for {gone}" if came else f", without {gone}"


def waited_share(attempt: AttemptPaths) -> float | None:
    """Return the share of the newest steps' time, from 0 to 1; None where too little is known."""
    waited = spent = 0.0
    steps = 0
    for line in parse(files.read_back(attempt.metrics, _TAIL_BYTES)):
        data, step = line.values.get("data_seconds"), line.values.get("step_seconds")
        if data is not None and step is not None and 0 <= data <= step:
            waited, spent, steps = waited + data, spent + step, steps + 1
    return waited / spent if steps >= _LEAST_STEPS and spent > 0 else None


def data_wait(attempt: AttemptPaths) -> str:
    """Return what to say of an attempt whose loader is too slow; empty for others."""
    found, others = waited_share(attempt), _compared(attempt)
    if others is not None and others.shares[0][1] >= STARVED and others.differ:
        waits = ", ".join(f"rank {rank} {one:.0%}" for rank, one in others.shares if one >= STARVED)
        text = (
            f"Waited for data in the {plural(others.steps, 'step')} to step {others.step:,}: "
            f"{waits}; half of the {others.world_size:,} ranks {others.median:.0%} or less. The "
            "others then wait for the slowest: its node, its storage and what its samples have "
            "in common are the first to look at"
        )
        return f"{text} ({_LOADER_ADVICE})."
    if found is None or found < STARVED:
        return ""
    who = "Rank 0"
    if others is not None and others.world_size > 1:
        who = f"Rank 0, like the other {plural(others.world_size - 1, 'rank')},"
    return f"{who} waited for data for {found:.0%} of its newest steps: {_LOADER_ADVICE}."


@dataclass(frozen=True)
class WaitComparison:
    """The newest record of all ranks' waits."""

    step: int
    steps: int
    shares: list[tuple[int, float]]
    median: float
    world_size: int

    @property
    def differ(self) -> bool:
        """The longest wait is not that of the others: more than half as long again."""
        return self.world_size > 1 and self.shares[0][1] > 1.5 * self.median


def _compared(attempt: AttemptPaths) -> WaitComparison | None:
    """Return the newest record of all ranks' waits; None where none is sound."""
    for event in reversed([*session_log.read_any(attempt).of(session_log.DATA_WAITS)]):
        record = event.record
        ranks, median = record.get("ranks"), record.get("median")
        counts = [record.get(name) for name in ("steps", "world_size")]
        if event.step is None or not all(map(INDEX.accepts, counts)) or not _is_share(median):
            continue
        if isinstance(ranks, list) and ranks and all(map(_is_pair, ranks)):
            shares = [(int(rank), float(one)) for rank, one in ranks[:_MOST_RANKS]]
            steps, size = (int(each or 0) for each in counts)
            return WaitComparison(event.step, steps, shares, float(median or 0), size)
    return None


def _is_share(value: Any) -> bool:
    return bool(NUMBER.accepts(value)) and 0 <= value <= 1


def _is_pair(value: Any) -> bool:
    is_pair = isinstance(value, list) and len(value) == 2
    return is_pair and bool(INDEX.accepts(value[0])) and _is_share(value[1])

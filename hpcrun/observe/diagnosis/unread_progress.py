"""What a run should have shown by now and hpcrun has not read.

Steps and metrics that a program prints, with the ``progress.pattern`` that would read them, and
what is said of one that finds nothing; what a spec names and the run never showed: its objective's
metric, files to resume from.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import time
from collections.abc import Iterable, Iterator, Sequence

from hpcrun.errors import BrokenFile
from hpcrun.observe.read import metric_curves
from hpcrun.observe.read.selection import Selected
from hpcrun.observe.status import run_state
from hpcrun.observe.status.status import RunStatus
from hpcrun.policy import resume
from hpcrun.state import files, metrics_file, session_log
from hpcrun.state.layout import AttemptPaths
from hpcrun.state.metrics_file import RESERVED
from hpcrun.text import listed, one_line, plural, shortened

# Updates of a bar may be many between two lines of metrics.
_TAIL_BYTES, _LONGEST, _MOST_METRICS = 1 << 20, 400, 4
# Of what is no bar, the last lines, and numbers of one.
_MOST_LINES, _MOST_NUMBERS = 1_000, 4
# Lines that show a step, and programs whose log is looked into at once.
_LEAST, _MOST_RUNS = 3, 3
# Lines, or seconds of an attempt, after which a pattern should have found one.
_ENOUGH_LINES, _ENOUGH_TIME = 50, 300.0
_MOST_SHOWN = 120

# Whole numbers, with commas between thousands or without.
_WHOLE = r"(?:[1-9]\d{0,2}(?:,\d{3}){1,4}|\d{1,12})"
_NUMBER = rf"(?P<step>{_WHOLE})(?:(?P<of> ?/ {{0,9}}| of )(?P<total>{_WHOLE}))?(?![\w.]|,\d)"
_STEP = re.compile(
    r"(?<![\w.])(?P<word>global_step|steps?|iter(?:ation)?s?)(?P<between>[\"' :=#\[(]{1,9})"
    + _NUMBER,
    re.ASCII | re.IGNORECASE,
)
_EPOCH = re.compile(
    r"(?<![\w.])(?P<word>epochs?)(?P<between>[\"' :=#\[(]{1,4})" + _NUMBER, re.ASCII | re.IGNORECASE
)
# ``[3/10] loss 0.5``
_BRACKET = re.compile(
    rf"(?P<word>)(?P<between>[\[(])(?P<step>{_WHOLE})(?P<of> ?/ ?)(?P<total>{_WHOLE})(?=[\])])",
    re.ASCII,
)
# ``50/ 112 batches``
_COUNTED = re.compile(
    rf"(?<![\w.])(?P<step>{_WHOLE})(?P<of> ?/ {{0,9}})(?P<total>{_WHOLE})"
    r" (?P<word>batch(?:es)?|steps?|iter(?:ation)?s?)\b",
    re.ASCII | re.IGNORECASE,
)
# ``[ 640/60000 (1%)]`` and ``[Batch 3/938]`` of an epoch
_PART = re.compile(
    rf"(?P<word>\bbatch|(?=[\[(]))(?P<between>[ \[(]{{1,9}})(?P<step>{_WHOLE})(?P<of> ?/ {{0,9}})"
    rf"(?P<total>{_WHOLE})(?![\w./])",
    re.ASCII | re.IGNORECASE,
)
_METRIC = re.compile(
    # Not the line of a source file.
    r"\b(?!(?:\w{1,30}\.)?py:\d)(?P<of>(?:train(?:ing)?|val(?:id(?:ation)?)?|test|eval)[. /]{1,2})?"
    r"(?P<name>[A-Za-z_]\w{0,30})(?P<between>[\"']? ?[:=] ?[\"']?| {1,9})"
    # Neither a time, such as 0:12:33, nor a size.
    rf"[-+]?{_WHOLE}(?:\.\d*)?(?:e[-+]?\d+)?(?![\w/.]|[,:]\d| ?(?:[kmgt]i?b|h|min|m?s|sec)\b)",
    re.ASCII | re.IGNORECASE,
)
_DICTIONARY = re.compile(r"\{[\"']")
_CONTROL = re.compile(r"\x1b\[[0-9;]{0,20}[A-Za-z]|\x08+")
_TELLS = re.compile(r"loss|step|epoch|iter|acc|error", re.IGNORECASE)
_VALUE = r"[-+.\w]+"
_OWN = {"step", "total", "epoch", "epochs", "epoch_total", "one_step", "ts", "eta", *RESERVED}
# Seconds of an attempt after which a metric or a save should have come, and of one that ended.
_ENOUGH_SECONDS, _BRIEF = 600.0, 60.0
# Runs that are read, sentences that are told, and names in one.
_MOST_READ, _MOST_TOLD, _MOST_NAMES = 10, 3, 6


def proposed(lines: Iterable[str], *, metrics: bool = False) -> str | None:
    """Return the pattern that reads the steps of these lines; None if no form is unmistakable.

    ``metrics``: one that reads no metric beside them is of no use.
    """
    for pattern in _forms(_without_bars(lines)[-_MOST_LINES:]):
        if pattern is not None and (not metrics or {*re.compile(pattern).groupindex} - _OWN):
            return pattern
    return None


def _forms(lines: Sequence[str]) -> Iterator[str | None]:
    """Yield patterns, the best first; None where lines are not of one form."""
    yield _of_both(lines)
    for expression in (_STEP, _EPOCH, _BRACKET, _COUNTED):
        found: dict[str, list[tuple[re.Match[str], str]]] = {}
        for line in lines:
            for match in itertools.islice(expression.finditer(line), _MOST_NUMBERS):
                form = match["word"] + match.groupdict().get("between", "").strip()
                found.setdefault(form, []).append((match, line))
        for word in sorted(found, key=lambda one: -len(found[one])):
            yield _of_word(found[word], expression)
    yield _of_each_line(lines)


def _of_word(found: Sequence[tuple[re.Match[str], str]], expression: re.Pattern[str]) -> str | None:
    """Return the pattern of lines that show a number which rises."""
    if expression is not _STEP:
        # A line that only says that an epoch begins is another.
        with_metrics = [(match, line) for match, line in found if _metrics(line, *match.span())]
        found = with_metrics or (found if expression is _EPOCH else [])
    steps = [int(match["step"].replace(",", "")) for match, _ in found]
    # Many lines of one epoch are printed before it has ended.
    is_within = expression is _EPOCH and len(steps) > _LEAST * len(set(steps))
    if len(set(steps)) < _LEAST or steps != sorted(steps) or is_within:
        return None
    match, line = found[0]
    is_epoch = expression is _EPOCH or (expression is _BRACKET and steps[0] == 0)
    own = [_numbered(match, "epoch" if is_epoch else "step", "total")]
    return _whole(line, own, (each for _, each in found))


def _of_both(lines: Sequence[str]) -> str | None:
    """Return the pattern of lines that show an epoch and a step in it."""
    found = [
        (epoch, step, line)
        for line in lines
        if (epoch := _EPOCH.search(line)) and (step := _step_in_epoch(line, epoch.end()))
    ]
    if not found:
        return None
    epochs = [int(epoch["step"].replace(",", "")) for epoch, _, _ in found]
    steps = [int(step["step"].replace(",", "")) for _, step, _ in found]
    if len(found) < _LEAST or epochs != sorted(epochs) or len(set(steps)) < 2:
        return None
    falls = any(before > after for before, after in itertools.pairwise(steps))
    if not falls and (len(set(epochs)) > 1 or found[0][1].re is _PART):
        # It counts the steps of all epochs, or may do so.
        return None
    if any(
        e == f and s > t for (e, s), (f, t) in itertools.pairwise(zip(epochs, steps, strict=True))
    ):
        return None
    epoch, step, line = found[0]
    end = "epoch_total" if falls else "total"
    own = [_numbered(epoch, "epoch", "epochs"), _numbered(step, "step", end)]
    return _whole(line, own, (each for _, _, each in found))


def _step_in_epoch(line: str, begin: int) -> re.Match[str] | None:
    found = (each.search(line, begin) for each in (_STEP, _COUNTED, _PART))
    return next(filter(None, found), None)


def _of_each_line(lines: Sequence[str]) -> str | None:
    """Return the pattern of lines such as ``{'loss': 0.5, 'epoch': 0.1}``: each is a step."""
    found = [line for line in lines if _DICTIONARY.search(line) and "loss" in line]
    metric = next((one for one in _METRIC.finditer(found[0])), None) if found else None
    if len(found) < _LEAST or metric is None or metric["name"] != "loss" or metric["of"]:
        return None
    value = f"(?P<one_step>loss){_between(metric['between'])}(?P<loss>{_VALUE})"
    return value if all(re.search(value, line) for line in found) else None


def _numbered(match: re.Match[str], name: str, end: str) -> tuple[int, int, str]:
    """Return where a number and its end stand, and their expression."""
    part = rf"(?P<{name}>\d+)"
    if match["total"]:
        part += rf"{_padded(match['of'])}(?P<{end}>\d+)"
    if match.re is _COUNTED:
        part += f" {match['word']}"
    else:
        part = f"{match['word']}{_padded(match['between'])}{part}"
    return match.start(), match.end(), part


def _padded(text: str) -> str:
    """Return an expression for what stands before a number, with room for one of more digits."""
    return re.sub(r"(?<=[\[(/]) \+$", " *", _between(text))


def _metrics(line: str, begin: int, end: int) -> list[re.Match[str]]:
    """Return the metrics of a line: those after its number, of a dictionary all."""
    all_of_it = _DICTIONARY.search(line, 0, begin)
    found = _METRIC.finditer(line, all_of_it.start() if all_of_it else end)
    return [one for one in found if one["name"].lower() not in _OWN]


def _whole(line: str, own: Sequence[tuple[int, int, str]], lines: Iterable[str]) -> str | None:
    """Return the pattern of a line's numbers and metrics, if it finds all of some lines."""
    shown, found = [*lines], dict[str, tuple[int, int, str]]()
    values: dict[str, int] = {}
    for metric in _metrics(line, *max(own)[:2]):
        # What was measured: ``val loss`` is none of the lines with ``train loss``.
        of, place = metric["of"] or "", metric.start()
        name = re.sub(r"\W+", "_", of) + metric["name"]
        is_other = all(place >= end or metric.end() <= begin for begin, end, _ in own)
        if name not in found and is_other:
            text = _between(f"{of}{metric['name']}{metric['between']}")
            value = rf"\b{text}(?P<{name}>{_VALUE})"
            found[name] = place, metric.end(), value
            values[name] = len({one[0] for each in shown if (one := re.search(value, each))})
    # What never changes, such as a batch's size, does not take the place of what does.
    chosen = sorted(found, key=lambda name: values[name] < 2)[:_MOST_METRICS]
    parts = [*own, *(found[name] for name in chosen)]
    pattern = ".*?".join(part for _, _, part in sorted(parts))
    wide = pattern.replace(r"\d+", r"\d+(?:,\d{3})*").replace(_VALUE, _VALUE + r"(?:,\d{3}[\d.]*)*")
    if any("," in "".join(one.groups("")) for each in shown if (one := re.search(wide, each))):
        pattern = wide
    # A line that shows another form would be left out.
    return pattern if all(re.search(pattern, each) for each in shown) else None


def _between(text: str) -> str:
    """Return an expression for what stands between a word and its number.

    Quotes would end the spec's own.
    """
    parts = re.split("( +|[\"'])", text)
    return "".join(
        " +" if part.isspace() else "." if part in ("'", '"') else re.escape(part) for part in parts
    )


def of_run(selected: Selected, attempt: int, *, metrics: bool = False) -> str | None:
    """Return the line of a spec that would have an attempt's steps read; None if none is known.

    ``metrics``: its steps are read, and no metrics.
    """
    pattern = _of_lines(selected, _printed(selected, attempt), metrics=metrics)
    return None if pattern is None else _in_spec(pattern)


def _of_lines(selected: Selected, lines: list[str], *, metrics: bool = False) -> str | None:
    """Return the pattern that is `proposed` for a run; None for one whose spec settles it."""
    run = selected.run
    settings = run.spec.get("progress") or {}
    if run.entry.kind == "function" or settings.get("pattern") or settings.get("source") == "none":
        return None
    return proposed(lines, metrics=metrics)


def _in_spec(pattern: str) -> str:
    return f"progress: {{pattern: '{pattern}'}}"


def further(selected: Selected, attempt: int, reached: int) -> str | None:
    """Return a sentence on steps that an attempt printed beyond what its files show; None if none.

    A program writes a file for each evaluation, say, and prints a line every ten steps.
    """
    lines = _printed(selected, attempt)
    pattern = _of_lines(selected, lines)
    if pattern is None:
        return None
    found = [match for line in lines if (match := re.search(pattern, line))]
    last = found[-1].groupdict().get("step") if found else None
    if last is None or (shown := int(last.replace(",", ""))) <= reached:
        return None
    said = f"It prints steps up to {shown:,}: these are read in place of that file with"
    return f"{said} {_in_spec(pattern)}"


def unmatched(selected: Selected, attempt: int, *, well: bool) -> str | None:
    """Return a clause on a ``progress.pattern`` that has found nothing; None where that may be.

    Unless the attempt ended ``well``, that may be so for some lines and minutes.
    """
    if (selected.run.spec.get("progress") or {}).get("pattern") is None:
        return None
    paths = selected.paths.attempt(attempt)
    log = session_log.read_any(paths)
    read = (log.read_from or {}).get("source") is not None
    if read or any(log.of(session_log.STARTED, session_log.RESTORED)):
        return None
    lines = _lines(selected, attempt)
    if not (well or _is_enough(paths, lines)):
        return None
    text = f"progress.pattern has found no step in {plural(len(lines), 'line', ',')} of rank 0"
    numbers = [line for line in lines if any(map(str.isdigit, line))]
    near = [line for line in numbers if _TELLS.search(line)] or numbers
    if near:
        text += f", the nearest of which is {shortened(one_line(near[-1].strip()), _MOST_SHOWN)!r}"
    better = proposed(lines)
    return f"{text}; this one would: '{better}'" if better else text


def had_time(selected: Selected, attempt: int) -> bool:
    """Check whether an attempt printed so long, or so much, that a step should be among it."""
    return _is_enough(selected.paths.attempt(attempt), _lines(selected, attempt))


def _is_enough(paths: AttemptPaths, lines: Sequence[str]) -> bool:
    """Check by their number, and by the time from an attempt's start to the last of them."""
    with contextlib.suppress(OSError):
        printed_for = paths.rank_log(0).stat().st_mtime - paths.launch.stat().st_mtime
        return len(lines) >= _ENOUGH_LINES or printed_for >= _ENOUGH_TIME
    return False


def _lines(selected: Selected, attempt: int) -> list[str]:
    return _without_bars(_printed(selected, attempt))


def _without_bars(lines: Iterable[str]) -> list[str]:
    from hpcrun.policy.log_excerpt import is_bar  # its patterns take `status` milliseconds

    return [line for line in lines if not is_bar(line.encode(errors="replace"))]


def _printed(selected: Selected, attempt: int) -> list[str]:
    """Return the last lines that rank 0 printed, each update of a bar as one."""
    log = selected.paths.attempt(attempt).rank_log(0)
    with contextlib.suppress(OSError):
        text = files.read_tail(log, _TAIL_BYTES).decode(errors="replace")
        plain = (_CONTROL.sub("", line[:_LONGEST]) for line in text.splitlines())
        return [line for line in plain if line.strip()]
    return []


def unread_notes(runs: Iterable[tuple[Selected, RunStatus]]) -> Iterable[str]:
    """Return what to say of runs of which no step, or no metric, is read; once a line."""
    found: dict[str, str] = {}
    silent = (
        (one, status)
        for one, status in runs
        if status.attempt is not None and (status.step is None or not status.metrics)
    )
    for selected, status in itertools.islice(silent, _MOST_RUNS):
        assert status.attempt is not None
        if status.step is None and (
            clause := unmatched(selected, status.attempt, well=status.state == run_state.COMPLETED)
        ):
            found.setdefault(clause, f"{selected.name}: {clause}")
            continue
        what = "steps" if status.step is None else "metrics"
        line = of_run(selected, status.attempt, metrics=status.step is not None)
        if line is not None:
            found.setdefault(
                line,
                f"{selected.name} prints {what} that hpcrun does not read; with this line in its "
                f"spec it does:\n{line}",
            )
    return found.values()


def never_came_notes(runs: Iterable[tuple[Selected, RunStatus]]) -> Iterator[str]:
    """Yield what to say of some of these runs, as `never_came` with the run's name."""
    suspects = (
        (one, status)
        for one, status in runs
        if _is_due(one, status) and (_is_missing(one, status) or _patterns(one))
    )
    found = (
        f"{selected.name}: {sentence}"
        for selected, status in itertools.islice(suspects, _MOST_READ)
        for sentence in never_came(selected, status)
    )
    yield from itertools.islice(found, _MOST_TOLD)


def never_came(selected: Selected, status: RunStatus) -> Iterator[str]:
    """Yield a sentence on each thing that a run has not shown although it should have by now."""
    if not _is_due(selected, status):
        return
    metric = _metric(selected)
    if _is_missing(selected, status):
        with contextlib.suppress(BrokenFile):
            names = metric_curves.read(selected.paths).names
            if metric not in names and (names or status.state == run_state.COMPLETED):
                logs = f"it logs {listed(names, _MOST_NAMES)}" if names else "it logs no metric"
                yield f"the metric of the objective, {metric}, was not logged: {logs}"
    patterns = _patterns(selected)
    has_completed = status.state == run_state.COMPLETED
    if patterns and _has_only_stepped(selected, has_completed=has_completed):
        so_far = "matched" if status.over else "has matched so far"
        yield (
            f"no finished save was seen that {so_far} recovery.resume.when "
            f"({listed(patterns, 3)}), from which the next attempt would go on"
        )


def _is_due(selected: Selected, status: RunStatus) -> bool:
    """Check whether a run names something, and has run for long enough to show it."""
    if status.attempt is None or not (_metric(selected) or _patterns(selected)):
        return False
    if status.state == run_state.COMPLETED:
        return True
    until, enough = (status.updated, _BRIEF) if status.over else (None, _ENOUGH_SECONDS)
    with contextlib.suppress(OSError):
        began = selected.paths.attempt(status.attempt).launch.stat().st_mtime
        return (until or time.time()) - began >= enough
    return False


def _is_missing(selected: Selected, status: RunStatus) -> bool:
    """Check whether the objective's metric is not among the newest values."""
    metric = _metric(selected)
    return metric is not None and metric not in (status.metrics or {})


def _metric(selected: Selected) -> str | None:
    # Not through the typed view: its import would be a twentieth of `hpcrun status`.
    return (selected.run.spec.get("objective") or {}).get("metric")


def _patterns(selected: Selected) -> list[str]:
    """Return the patterns of a resume that the spec itself asks for, if its saves are watched."""
    run = selected.run
    given = (run.spec.get("recovery") or {}).get("resume")
    if not given or (run.spec.get("progress") or {}).get("saved") is not None:
        return []
    found = resume.of_run(run)
    return list(found.when) if found else []


def _has_only_stepped(selected: Selected, *, has_completed: bool) -> bool:
    """Check that attempts made steps, or one completed, and none was seen to save."""
    attempts = selected.paths.attempts()
    if any(any(session_log.read_any(one).of(session_log.SAVED)) for one in attempts):
        return False
    return has_completed or any(metrics_file.last_step(one.metrics) is not None for one in attempts)


def notes(runs: Sequence[tuple[Selected, RunStatus]]) -> Iterator[str]:
    """Yield what to say of runs that do not show what they should."""
    yield from unread_notes(runs)
    yield from never_came_notes(runs)

"""The reader of a program that shows what it does: a thread of the agent of rank 0's node."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from hpcrun import shared_look
from hpcrun.errors import EXIT_SAVED
from hpcrun.extensions import READERS
from hpcrun.fields import TIME, WHOLE
from hpcrun.policy import frameworks, resume
from hpcrun.policy.batch import TRAIN
from hpcrun.run.program.file_search import MOST_ENTRIES, FoundFile, found_at, search
from hpcrun.run.program.progress_source import (
    BAR,
    EPOCHS,
    STEPS,
    EarlierProgress,
    Found,
    Look,
    OneUnit,
    ProgressSource,
    ReaderStart,
)
from hpcrun.run.program.progress_writer import SeenProgressWriter, Thinning, earlier_progress
from hpcrun.run.program.save_watch import USUAL, SaveWatch, step_of
from hpcrun.run.program.sources.log_lines import LogPattern, NewText
from hpcrun.run.protocol.attempt_fence import AttemptFence
from hpcrun.run.protocol.launch import Launch
from hpcrun.run.protocol.output import say
from hpcrun.run.rank import warm_up
from hpcrun.state import files, metrics_file, session_log
from hpcrun.state.layout import AttemptPaths
from hpcrun.state.plan import RunPlan
from hpcrun.text import listed

# The sources by the names of the spec's ``progress.source``; bars are the last resort of ``log``.
METRICS_FILE, LOG = "metrics_file", "log"
# Of READERS, those of the log.
_BARS = ("keras_bar", "progress_bar")

# Seconds between two looks, and between two searches for files: at first, and later.
LOOK, LOOK_LATER = 0.25, 2.0
SEARCH, SEARCH_LATER = 1.0, 10.0
# The most of the time that looks may take, however slow the storage is.
_SHARE = 0.05
# Seconds that the start and the end of an attempt wait for this thread, and of reading at its end.
PATIENCE, _LAST = 3.0, 2.0
_FAILURES = 20
# Seconds of silence, if twice as long as any pause before, after which a line is no sign of work
# until there is another step as long after it: ranks whose peer was lost print of it as they end.
_SILENCE = 2.0
# A bar that has no end of its line may stand before it.
_TRACEBACK = "Traceback (most recent call last)"
_MOST_TOLD, _MOST_SIGHTINGS = 50, 50
_OWN_NAMES = frozenset({"attempts", "checkpoints", "tracking", "work"})


class ProgramReader:
    """Reads one attempt of a program, until it is stopped.

    ``directory`` is the program's working directory, relative to the code's root. What lies there
    and in the run's directory when this begins is of earlier attempts. ``scratch`` is the attempt's
    directory on this node.
    """

    def __init__(self, run: RunPlan, paths: AttemptPaths, directory: str, scratch: Path) -> None:
        self._run, self._paths, self._scratch = run, paths, scratch
        self.imported: int | None = None
        """Once there was a step: the modules that warm ranks can import (`warm_up.publish`)."""
        mirror = paths.run.rank_work(0) if run.has_rank_directories else paths.run.work
        self._directory = mirror / directory
        self._writer = SeenProgressWriter(paths)
        self._fence = AttemptFence(paths)
        self._log = NewText(paths.rank_log(0))
        self._began = self._alive = self._looked = time.time()
        # The longest pause of its work, and when it has printed since of an exception, or late.
        self._longest = 0.0
        self._failing: float | None = None
        self._search_at, self._is_cut = 0.0, False
        # Of this node's clock, before that of the files.
        self._ahead = 0.0
        # The steps, and what was said of where they are read.
        self._steps = OneUnit(EarlierProgress())
        self._told: list[dict[str, Any]] = []
        # Of a metrics file that the program writes.
        self._offset: int | None = None
        self._sightings = Thinning(_MOST_SIGHTINGS)
        self._over, self._ready = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._work, name="program reader", daemon=True)
        self._thread.start()
        self._ready.wait(PATIENCE)

    def stop(self) -> None:
        """Read the rest, once the ranks have ended; a storage that hangs is not waited for."""
        self._over.set()
        self._thread.join(PATIENCE)

    def _work(self) -> None:
        try:
            self._prepare()
        except Exception as error:
            return say(f"the program is not read: {type(error).__name__}: {error}")
        finally:
            self._ready.set()
        pattern = self._sources.get(LOG)
        with contextlib.ExitStack() as at_end:
            if isinstance(pattern, LogPattern):
                at_end.callback(pattern.close)
            return self._look_until_over()

    def _look_until_over(self) -> None:
        failures, pause, is_last = 0, LOOK, False
        while not is_last and failures < _FAILURES:
            is_last = self._over.wait(pause)
            begun = time.monotonic()
            try:
                if self._fence.passed() or self._writer.has_session:
                    return
                self._turn(is_last)
            except Exception as error:
                failures += 1
                say(f"the program cannot be read: {type(error).__name__}: {error}")
            # Lines without times are as exact as the look, and the first ones end the start.
            age = (time.time() - self._began) / (1000 if self._steps.reached is None else 100)
            pause = max(LOOK, min(LOOK_LATER, age))
            pause = max(pause, (time.monotonic() - begun) / _SHARE)

    def _prepare(self) -> None:
        with contextlib.suppress(OSError):
            storage_time = shared_look.storage_time(self._paths.directory)
            self._ahead = shared_look.clock_ahead(time.time(), storage_time)
        wanted, run = self._run.progress, self._paths.run
        self._roots = [run.work, run.directory]
        if wanted.directory:
            self._roots.insert(0, self._directory / self._fill(wanted.directory))
        chosen = [wanted.saved] if isinstance(wanted.saved, str) else wanted.saved
        if chosen is None and wanted.source != frameworks.NONE:
            resumes = resume.of_run(self._run)
            chosen = [*resumes.when] if resumes else None
        if chosen:
            globs, below = [self._fill(one) for one in chosen], [self._directory]
        else:
            globs, below = [*USUAL] if wanted.source != frameworks.NONE else [], self._roots
        self._bases = SaveWatch(globs, below, ()).bases
        self._roots += [one for one in self._bases if not any(map(one.is_relative_to, below))]
        there = self._search()
        self._saves = SaveWatch(globs, below, there)
        self._steps = OneUnit(earlier_progress(self._paths))
        self._sources = self._choose_sources(there)

    def _fill(self, text: str) -> str:
        text = text.replace("${hpcrun:directory}", str(self._paths.run.directory))
        return text.replace("${hpcrun:attempt}", str(self._paths.number))

    def _choose_sources(self, there: Sequence[FoundFile]) -> dict[str, ProgressSource]:
        """Return the sources that are tried, in order.

        A run is read in one unit: that of the pattern, else that of the source which had its steps
        in an earlier attempt, or of a better one that counts alike.
        """
        wanted, earlier = self._run.progress, self._steps.earlier
        if wanted.pattern is not None:
            return {LOG: LogPattern(wanted.pattern, self._resumed_step, earlier.first_epoch)}
        known = self._run.deepspeed.get(TRAIN)
        batch = known if WHOLE.accepts(known) else None
        if wanted.source == frameworks.AUTO:
            names = [frameworks.of(self._run.entry.framework).progress, *READERS.own]
        else:
            names = [*_BARS] if wanted.source == LOG else [wanted.source]
        names = [name for name in dict.fromkeys(names) if name in READERS]
        if earlier.source in names and not (earlier.unit or "").startswith(BAR):
            names = names[: names.index(earlier.source) + 1]
        start = ReaderStart(tuple(map(self._by_own_clock, there)), batch, earlier.first_epoch)
        return {name: READERS.load(name).begin(start) for name in names}

    def _resumed_step(self) -> int:
        """Return the step of the save that the attempt resumes from; 0 where it has none."""
        resume = Launch.read(self._paths.launch).resume or {}
        if not resume.get("resumes"):
            return 0
        earlier = (one for one in self._paths.run.attempts() if one.number < self._paths.number)
        saved = (session_log.read_any(one).saved_step for one in earlier)
        known = max((step for step in saved if step is not None), default=None)
        if source := resume.get("source"):
            with contextlib.suppress(OSError):
                known = step_of(found_at(Path(source)), known)
        return known or 0

    def _search(self) -> list[FoundFile]:
        """Return the program's files; where those are very many, all that the globs begin with."""
        found: dict[Path, FoundFile] = {}
        cut: list[Path] = []
        for root in dict.fromkeys(self._roots):
            without = _OWN_NAMES if root == self._paths.run.directory else frozenset()
            on_cut = partial(cut.append, root)
            found.update((one.path, one) for one in search(root, without, on_cut=on_cut))
        if cut:
            for base in {*self._bases}.difference(self._roots):
                found.update((one.path, one) for one in search(base))
        if cut and not self._is_cut:
            self._is_cut = True
            where = listed([*map(str, cut)], 3)
            say(
                f"{where} has more than {MOST_ENTRIES:,} files and directories, of which the "
                "others are not looked at; progress.saved and progress.directory say where "
                "saves and event files are"
            )
        return list(found.values())

    def _turn(self, is_last: bool) -> None:
        found: list[FoundFile] | None = None
        begun = time.monotonic()
        if is_last or begun >= self._search_at:
            found = self._search()
            took, age = time.monotonic() - begun, time.time() - self._began
            every = max(SEARCH, min(SEARCH_LATER, age / 20))
            self._search_at = begun + max(every, took / _SHARE)
        while True:
            text = self._log.read(is_last)
            moment, fails = time.time(), False
            if text:
                # More exact than the time of the look.
                moment = min(moment, max(self._looked, self._log.modified + self._ahead))
                # A rank whose peer was killed prints of it some time after its last work.
                fails = any(_TRACEBACK in line for line in text)
                silence = moment - self._alive
                if self._steps.reached is not None and silence > max(_SILENCE, 2 * self._longest):
                    self._fails(moment)
                if not fails and self._failing is None:
                    self._works(moment)
            found_files = None if found is None else tuple(map(self._by_own_clock, found))
            look = Look(moment, self._looked, text, found_files, is_last)
            self._looked = moment
            is_more = self._theirs(look) if self._is_theirs() else self._ours(look)
            if fails:
                self._fails(moment)
            if not is_last or not (is_more or text) or time.monotonic() > begun + _LAST:
                break
        if self.imported is None and self._steps.reached is not None:
            file = self._run.entry.file
            self.imported = warm_up.publish(file, self._scratch, self._paths) if file else 0
        if found is not None:
            well = is_last and self._ended_well()
            moment = time.time()
            for save in self._saves.look(
                *(found, self._steps.reached, moment - self._ahead),
                step_at=lambda modified: self._steps.at(modified + self._ahead),
                is_last=is_last,
                ended_well=well,
                by_name=self._steps.unit != EPOCHS,
            ):
                when = min(max(save.modified + self._ahead, self._began), moment)
                self._writer.saved(save.step, self._name(save.path), save.bytes, when)
            self._steps.forget()
        if is_last:
            self._conclude()

    def _by_own_clock(self, one: FoundFile) -> FoundFile:
        return one._replace(modified=one.modified + self._ahead) if self._ahead else one

    def _works(self, moment: float) -> None:
        """Note a sign of the program's work."""
        if self._steps.reached is not None:
            self._longest = max(self._longest, moment - self._alive)
        self._alive = max(self._alive, moment)
        # A logger that an exception closes writes the steps before it, and a bar its end.
        if self._failing is not None and moment > self._failing + _SILENCE:
            self._failing = None

    def _fails(self, moment: float) -> None:
        """Note what its end may have printed."""
        self._failing = moment if self._failing is None else self._failing

    def _ours(self, look: Look) -> bool:
        """Write what the best source has; return whether there is more at once."""
        is_more = False
        for name, source in self._sources.items():
            try:
                found = source.poll(look)
            except OSError as error:
                say(f"progress is not read: {error}")
                continue
            is_more |= found.is_more
            if found.problem:
                say(f"progress.pattern: {found.problem}")
                self._writer.event("pattern_dropped", message=found.problem)
            if found.lines:
                found.lines = self._steps.taken(name, found, look.time)
                self._works(max(line.time or 0.0 for line in found.lines))
                self._steps.note(found.lines, look.time)
                if name == self._steps.source:
                    self._tell(name, found)
                self._writer.lines(found.lines)
            if name == self._steps.source:
                self._tell(name, found)
                break
        return is_more

    def _is_theirs(self) -> bool:
        if self._offset is None and self._writer.is_foreign:
            self._offset = 0
            self._steps.source, self._steps.unit = METRICS_FILE, STEPS
            self._tell(METRICS_FILE, Found(path=self._paths.metrics))
        return self._offset is not None

    def _theirs(self, look: Look) -> bool:
        """Look at what the program writes; where its lines have no time, note it."""
        assert self._offset is not None
        records, offset = files.read_on(self._paths.metrics, self._offset)
        is_new, self._offset = offset > self._offset, offset
        lines = list(metrics_file.parse(records))
        if lines:
            modified = os.stat(self._paths.metrics).st_mtime + self._ahead
            moment = min(time.time(), max(self._began, modified))
            self._works(moment)
            self._steps.note(lines, moment)
            if lines[-1].time is None and (look.is_last or self._sightings.keeps(moment)):
                self._writer.event(session_log.SEEN, step=lines[-1].step, time=round(moment, 3))
        return is_new

    def _tell(self, source: str | None, found: Found) -> None:
        """Write where progress is read, if it is news."""
        before = self._told[-1] if self._told else {}
        path = self._name(found.path) if found.path else None
        if path is None and source == before.get("source"):
            path = before.get("path")
        # What a run comes to is the same for all sources.
        total = found.total and found.total + self._steps.done
        total = None if found.is_endless else total or before.get("total_steps")
        news = {
            "source": source,
            "path": path,
            "total_steps": self._run.progress.total or total,
            "unit": self._steps.unit,
            "first_epoch": before.get("first_epoch", found.first_epoch),
        }
        news = {
            name: value for name, value in news.items() if name == "source" or value is not None
        }
        if news != before and len(self._told) < _MOST_TOLD:
            self._told.append(news)
            self._writer.event(session_log.READ_FROM, **news)
            # The record tells of none; an agent that has nothing to say leaves no log.
            if source and news | before != before:
                say(f"progress is read from {path or 'its log'} ({source})")

    def _ended_well(self) -> bool:
        """Check whether rank 0 came to its end, or saved and left."""
        if session_log.read_any(self._paths).finished:
            return True
        return self._exit_record().get("exit_code") == EXIT_SAVED

    def _exit_record(self) -> dict[str, Any]:
        with contextlib.suppress(OSError, ValueError):
            found = files.read_json(self._paths.exit_record(0), files.MOST_LINE)
            return found if isinstance(found, dict) else {}
        return {}

    def _conclude(self) -> None:
        self._writer.last()
        if self._steps.source is None and self._run.progress.source != frameworks.NONE:
            self._tell(None, Found())
        record = self._exit_record()
        failed = self._failing is not None and record.get("exit_code")
        # Until its first step it was starting, whatever it printed.
        starts = self._steps.reached is None
        ended = None if failed and not starts else record.get("time")
        last = time.time() if starts else self._alive
        if ended is not None and TIME.accepts(ended):
            last = float(ended)
        self._writer.event(session_log.SEEN, time=round(last, 3))

    def _name(self, path: Path) -> str:
        for root in (self._directory, self._paths.run.directory):
            if path.is_relative_to(root):
                return str(path.relative_to(root))
        return str(path)

"""The saves that a program makes by itself, seen by their files.

A save is a file or directory that matches a glob, is new or has changed since the attempt began,
and has stayed as it is for a moment.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from hpcrun.run.program.file_search import FoundFile, matcher, split
from hpcrun.run.program.sources import trainer_state
from hpcrun.state import files

# What common programs call their saves, anywhere below the directories that are searched.
USUAL = (
    *("**/checkpoint-*", "**/*.ckpt", "**/latest", "**/ckpt*.pt", "**/checkpoint*.pt*"),
    *("**/snapshot*.pt*", "**/last.pt*", "**/latest.pt*"),
)
# Seconds for which a save has not changed when it counts as complete.
STAYS = 5.0
_MOST_SAVES = 200
_MOST_POINTER = 200
_NAMED_STEP = re.compile(r"(?:step|iter|iteration|checkpoint|ckpt)s?[-_=.]?(\d{1,15})(?!\d)")
_STEP_DIRECTORY = re.compile(r"(?:global_?)?(?:step|checkpoint|ckpt|iter)[-_=]?(\d{1,15})")
_EPOCH_DIRECTORY = re.compile(r"epoch[-_=]?\d+")
_EPOCH = re.compile(r"epoch", re.IGNORECASE)
_NAMED_EPOCH = re.compile(r"epochs?[-_=.]?(\d{1,15})(?!\d)")
_DECIMAL = re.compile(r"\d{1,15}\.\d{1,15}")
_DIGITS = re.compile(r"(?<!\d)\d{1,15}(?!\d)")
# Which file of one save it is: ``optim_000030_rank0``, ``model-00001-of-00003``, ``mp_rank_00``.
_PART = re.compile(
    r"(?<![a-z])(?:rank|shard|part|proc(?:ess)?|worker|gpu|node|[dtpmec]p)[-_=.]?\d+(?:[-_]of[-_]\d+)?"
    r"|\d+[-_]of[-_]\d+",
    re.IGNORECASE,
)


STEP = "step"
"""The kind of `Place` of saves that tell their step."""


class Save(NamedTuple):
    """A complete save."""

    path: Path
    step: int | None
    """Its step, from the Trainer's state in it, its name, or the last step known as it was seen."""
    bytes: int
    modified: float
    """Seconds since the epoch."""


class _State(NamedTuple):
    """How a save looks: another state is another save."""

    files: int
    bytes: int
    modified: float
    number: int


class SaveWatch:
    """The saves that match globs, relative to directories. Those ``there`` already are not new."""

    def __init__(
        self, globs: Iterable[str], directories: Sequence[Path], there: Sequence[FoundFile]
    ) -> None:
        places = [split(one, directory) for one in globs for directory in directories]
        self._patterns = [(f"{base}/", matcher(below)) for base, below in dict.fromkeys(places)]
        self.bases = tuple(base for base, _ in dict.fromkeys(places))
        """Where they lie."""
        self._known = {one.path: state for one, state in self._matches(there)}
        # State, since when, and the step at which it was seen first.
        self._changing: dict[Path, tuple[_State, float, int | None]] = {}

    def look(
        self,
        found: Sequence[FoundFile],
        step: int | None,
        now: float,
        *,
        step_at: Callable[[float], int | None] | None = None,
        is_last: bool = False,
        ended_well: bool = False,
        by_name: bool = True,
    ) -> list[Save]:
        """Return the saves among files that are complete by now, the oldest first.

        ``step`` is the last that is known, ``step_at`` has that of a time since the look before,
        ``now`` is in seconds since the epoch. At the last look the ranks have ended: if they ended
        well, no save is under way. Without ``by_name`` the numbers that saves tell are no steps.
        """
        complete = []
        for one, state in self._matches(found):
            if self._known.get(one.path) == state or not state.files:
                continue
            before = self._changing.get(one.path)
            if before is None or before[0] != state:
                # One that grows is still the same save; any other change is the next one.
                grows = before is not None and before[0].number == state.number
                if before is not None and grows and before[0].bytes < state.bytes:
                    before = state, now, before[2]
                else:
                    # A program goes on while a save is looked for.
                    before = state, now, step if step_at is None else step_at(state.modified)
                self._changing[one.path] = before
            rests = is_last and (ended_well or now - state.modified >= STAYS)
            if rests or now - before[1] >= STAYS:
                if not is_last and not all(map(_is_as_found, _files_of(one, found))):
                    # Another node still writes it; the next look finds how it is.
                    self._changing[one.path] = state, now, before[2]
                    continue
                del self._changing[one.path]
                self._known[one.path] = state
                own = step_of(one, before[2]) if by_name else before[2]
                complete.append(Save(one.path, own, state.bytes, state.modified))
        return sorted(complete, key=lambda save: save.modified)

    def _matches(self, found: Sequence[FoundFile]) -> list[tuple[FoundFile, _State]]:
        """Return what matches a glob, and how it looks; of very many the newest."""
        texts = [(str(one.path), one) for one in found]
        matches = [
            (text, one)
            for text, one in texts
            if any(
                text.startswith(base) and pattern.fullmatch(text, len(base))
                for base, pattern in self._patterns
            )
        ]
        matches.sort(key=lambda match: match[1].modified)
        return [(one, _state(text, one, texts)) for text, one in matches[-_MOST_SAVES:]]


def _files_of(one: FoundFile, found: Iterable[FoundFile]) -> list[FoundFile]:
    """Return the files of a save."""
    if not one.is_directory:
        return [one]
    return _inside(str(one.path), ((str(each.path), each) for each in found))


def _inside(directory: str, texts: Iterable[tuple[str, FoundFile]]) -> list[FoundFile]:
    above = f"{directory}/"
    return [one for path, one in texts if not one.is_directory and path.startswith(above)]


def _is_as_found(one: FoundFile) -> bool:
    """Open a file, as what is known of it otherwise may be of a minute ago, and compare."""
    try:
        with files.open_stream(one.path) as stream:
            facts = os.fstat(stream.fileno())
    except OSError:
        return True
    return (facts.st_size, facts.st_mtime) == (one.size, one.modified)


def _state(text: str, one: FoundFile, texts: Iterable[tuple[str, FoundFile]]) -> _State:
    if not one.is_directory:
        return _State(1, one.size, one.modified, one.number)
    inside = _inside(text, texts)
    newest = max((each.modified for each in inside), default=one.modified)
    return _State(len(inside), sum(each.size for each in inside), newest, one.number)


def step_of(one: FoundFile, known: int | None) -> int | None:
    """Return the step of a save, or else the one ``known``.

    It is in the Trainer's state inside, in the file itself (DeepSpeed's ``latest`` names a
    directory), or in the name, whose numbers after ``epoch`` are not steps.
    """
    name = _name_of(one)
    if (step := _told_step(one, name)) is not None or name is None:
        return known if step is None else step
    # A file of several in one save has the epoch in the name of their directory.
    is_epoch = _EPOCH.search(name) or _EPOCH_DIRECTORY.fullmatch(_above(one))
    digits = _DIGITS.findall(_PART.sub("~", name))
    return int(digits[-1]) if digits and not is_epoch else known


class Place(NamedTuple):
    """The place of a save among those of its ``kind``: the higher number was saved later."""

    kind: str
    """`STEP`, ``epoch``, a name without its numbers, or the path of what has none."""
    numbers: tuple[int, ...] = ()


def place_of(one: FoundFile, *, by_directory: bool = False) -> Place:
    """Return the place of a save by the step, the epoch or the numbers that it tells.

    ``by_directory``: the directory of the file is chosen by its name.
    """
    name = _name_of(one)
    if (step := _told_step(one, name)) is not None:
        return Place(STEP, (step,))
    above = _above(one)
    if epochs := _NAMED_EPOCH.findall((name or "").lower()) or _NAMED_EPOCH.findall(above):
        return Place("epoch", (int(epochs[-1]),))
    # Losses and their like tell nothing.
    text = _DECIMAL.sub("~", _PART.sub("~", f"{above}/{name}" if by_directory else name or ""))
    numbers = tuple(map(int, _DIGITS.findall(text)))
    return Place(_DIGITS.sub("#", text), numbers) if numbers else Place(str(one.path))


def _name_of(one: FoundFile) -> str | None:
    """Return where a save has its number; None where that cannot be read."""
    if one.is_directory:
        return one.path.name
    if one.path.name != "latest" or one.size > _MOST_POINTER:
        return one.path.stem
    try:
        return files.read_bytes(one.path, _MOST_POINTER).decode(errors="replace").strip()
    except OSError:
        return None


def _above(one: FoundFile) -> str:
    return "" if one.is_directory else one.path.parent.name.lower()


def _told_step(one: FoundFile, name: str | None) -> int | None:
    """Return the step of a save where it is named as one."""
    if one.is_directory or one.path.name == trainer_state.NAME:
        state = trainer_state.read(one.path / trainer_state.NAME if one.is_directory else one.path)
        step = (state or {}).get("global_step")
        if type(step) is int and 0 <= step < 1 << 53:
            return step
    if named := _NAMED_STEP.findall((name or "").lower()):
        return int(named[-1])
    # A file of several in one save has the step in the name of their directory.
    whole = _STEP_DIRECTORY.fullmatch(_above(one))
    return int(whole[1]) if whole else None

"""Problems are collected, so that the user sees all of them at once."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from itertools import islice
from pathlib import Path
from typing import Any

from hpcrun.errors import Problem, SpecError
from hpcrun.text import listed

MOST = 100
"""Problems that are told at once; the search for more ends there."""
MOST_NUMBER = 10**9
"""The largest whole number of a spec's own keys, where a key has no smaller one."""
# Names that a misspelt one is compared with, and their length: the comparison is slow.
_MOST_NAMES, _LONGEST_NAME = 1_000, 100


class Problems:
    """The problems found so far in one spec, in the order in which they were found, each once."""

    def __init__(self) -> None:
        from hpcrun.compile.source.limits import Extent  # imports yaml, which nodes are without

        self.found: list[Problem] = []
        # The YAML files that were read, and those of JSON.
        self.files: list[Path] = []
        self.data_files: list[Path] = []
        self.unreadable = False
        """True after a file could not be read: keys that seem to be missing may be in it."""
        self.extent = Extent()
        self.notes: list[str] = []
        """Messages on what is no mistake, as problems are told."""
        self._known: set[Problem] = set()

    def __bool__(self) -> bool:
        return bool(self.found)

    def add(self, *problems: Problem) -> None:
        """Add problems, each unless it was added before; raise SpecError if they are too many."""
        for one in problems:
            if one not in self._known:
                self._known.add(one)
                self.found.append(one)
                if len(self.found) == MOST:
                    self.found.append(Problem(one.file, "", f"{MOST} problems; there may be more"))
                    self.check()

    def under(self, *keys: str) -> bool:
        """Return whether there is a problem at one of these keys or below them."""
        return any(
            problem.key == key or problem.key.startswith(key + ".")
            for problem in self.found
            for key in keys
        )

    def check(self) -> None:
        """Raise SpecError with all problems found, sorted by file and line, if there is one."""
        if self.found:
            files = list(dict.fromkeys(problem.file for problem in self.found))
            order = {file: index for index, file in enumerate(files)}
            raise SpecError(sorted(self.found, key=lambda p: (order[p.file], p.line or 0)))


def did_you_mean(word: str, accepted: Iterable[str]) -> str | None:
    """Return ``did you mean 'nodes'?``, or None if nothing accepted is close to ``word``."""
    near = _nearest(str(word), accepted)
    return f"did you mean '{near}'?" if near else None


def nearest_file(name: str, there: Iterable[str]) -> str | None:
    """Return ``did you mean 'a.yaml'?``, of a file whose name without its ending is close.

    What has the name itself, and is taken for no file, is a directory or a broken link.
    """
    by_stem = {str(Path(one).with_suffix("")): one for one in there}
    if str(Path(name)) in by_stem.values():
        return f"{name} is a directory, or a link to what is not there"
    # The root has no name.
    near = _nearest(str(Path(name).with_suffix("")), by_stem) if name else None
    return f"did you mean '{by_stem[near]}'?" if near else None


def _nearest(word: str, accepted: Iterable[str]) -> str | None:
    if len(word) > _LONGEST_NAME:
        return None
    names = [name for name in map(str, islice(accepted, _MOST_NAMES)) if len(name) <= _LONGEST_NAME]
    if close := get_close_matches(word, names, n=1, cutoff=0.6):
        return close[0]
    lowered = {name.lower().replace("-", "_"): name for name in names}
    # As `lr` stands for `learning_rate`, and back.
    initials = {"".join(part[:1] for part in one.split("_")): lowered[one] for one in lowered}
    plain = word.lower().replace("-", "_")
    own = "".join(part[:1] for part in plain.split("_"))
    return lowered.get(plain) or initials.get(plain) or (lowered.get(own) if own[1:] else None)


def listing(names: Iterable[str], limit: int = 40) -> str:
    """Join names by commas, cut after ``limit``."""
    return listed([str(name) for name in names], limit, rest=", … ({} more)")


def kind_of(value: Any) -> str:
    """Name the type of a value for messages: ``a string``, ``a list``, ``nothing (null)``."""
    if value is None:
        return "nothing (null)"
    names: dict[type, str] = {
        bool: "true or false",
        int: "a whole number",
        float: "a number",
        str: "a string",
        list: "a list",
        dict: "a mapping",
    }
    return names.get(type(value), type(value).__name__)

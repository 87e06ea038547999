"""Mistakes are gathered, not raised one by one, so that a person sees all of them at once."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from hpcrun.compile.source.marked_tree import Key, Tree, dotted
from hpcrun.errors import Problem, SpecError
from hpcrun.text import listed


class Problems:
    """The mistakes found so far in one spec.

    Attributes
    ----------
    found
        In the order in which they were found, each once.
    unreadable
        A file could not be read, so that what seems to be missing may be in there.
    """

    def __init__(self) -> None:
        self.found: list[Problem] = []
        self.unreadable = False

    def __bool__(self) -> bool:
        return bool(self.found)

    def add(self, problem: Problem) -> None:
        """Note a mistake, unless it is noted already."""
        if problem not in self.found:
            self.found.append(problem)

    def at(self, tree: Tree, key: Key, message: str, hint: str | None = None) -> None:
        """Note a mistake in the value of ``key``, with the file and line that it came from."""
        mark = tree.mark(key)
        self.add(Problem(mark.file, dotted(key), message, hint, mark.line))

    def under(self, *keys: str) -> bool:
        """Whether a mistake is known in one of these keys or below them."""
        return any(
            problem.key == key or problem.key.startswith(key + ".")
            for problem in self.found
            for key in keys
        )

    def check(self) -> None:
        """Raise what was found.

        Raises
        ------
        SpecError
            Something was found.
        """
        if self.found:
            files = list(dict.fromkeys(problem.file for problem in self.found))
            order = {file: index for index, file in enumerate(files)}
            raise SpecError(sorted(self.found, key=lambda p: (order[p.file], p.line or 0)))


def did_you_mean(word: str, accepted: Iterable[str], *, quote: str = "'") -> str | None:
    """``did you mean 'nodes'?``, or None when nothing accepted is close to ``word``."""
    names = [str(name) for name in accepted]
    close = get_close_matches(str(word), names, n=1, cutoff=0.6)
    if not close:
        lowered = {name.lower().replace("-", "_"): name for name in names}
        exact = lowered.get(str(word).lower().replace("-", "_"))
        close = [exact] if exact else []
    return f"did you mean {quote}{close[0]}{quote}?" if close else None


def listing(names: Iterable[str], limit: int = 40) -> str:
    """The names, separated by commas, cut after ``limit``."""
    return listed([str(name) for name in names], limit, rest=", … ({} more)")

"""The difference between two versions of the code: names of files, and a patch."""

from __future__ import annotations

import difflib
import time
from collections.abc import Iterator, Mapping, Sequence

ADDED, REMOVED, CHANGED = "added", "removed", "changed"
# Larger files are not compared line by line.
_LONGEST_TEXT = 1 << 20
_MOST_LINES = 20_000
# Seconds for the patch of all files.
_LONGEST = 4.0


class CodeDiff:
    """The files that differ between two results of `code.snapshot.read` or ``look``.

    ``files`` maps their names, sorted, to ``added``, ``removed`` or ``changed``.
    """

    def __init__(self, before: Mapping[str, bytes], after: Mapping[str, bytes]) -> None:
        self._before, self._after = before, after
        self.files = {
            name: ADDED if name not in before else CHANGED if name in after else REMOVED
            for name in sorted({*before, *after})
            if before.get(name) != after.get(name)
        }

    def names(self, how: str) -> list[str]:
        return [name for name, one in self.files.items() if one == how]

    def patch(self) -> str:
        """Return a unified diff of the text files."""
        deadline = time.monotonic() + _LONGEST
        return "".join(
            _patch(name, self._before.get(name), self._after.get(name), deadline)
            for name in self.files
        )


def _patch(name: str, before: bytes | None, after: bytes | None, deadline: float) -> str:
    lines = []
    for content in (before, after):
        if content is not None and (len(content) > _LONGEST_TEXT or b"\0" in content):
            return f"{name}: binary or large files differ\n"
        lines.append((content or b"").decode(errors="replace").splitlines(keepends=True))
    labels = (
        "/dev/null" if before is None else f"a/{name}",
        "/dev/null" if after is None else f"b/{name}",
    )
    try:
        found = [*_unified(deadline, lines, labels)]
    except TimeoutError:
        return f"{name}: differs in too many lines\n"
    return "".join(line if line.endswith("\n") else f"{line}\n" for line in found)


class _Matcher(difflib.SequenceMatcher[str]):
    """The usual matcher, which gives up on files that would keep it busy for hours.

    Its time grows with the square of the lines, and more for those that were made for it.
    """

    deadline = 0.0

    def find_longest_match(self, *bounds: int) -> difflib.Match:  # type: ignore[override]
        if time.monotonic() > self.deadline:
            raise TimeoutError
        return super().find_longest_match(*bounds)


def _unified(deadline: float, lines: Sequence[list[str]], labels: Sequence[str]) -> Iterator[str]:
    """Yield the lines of a unified diff, as `difflib.unified_diff` does.

    Raises TimeoutError if that takes too long.
    """
    before, after = lines
    if min(len(before), len(after)) > _MOST_LINES:
        raise TimeoutError
    matcher = _Matcher(None, before, after)
    matcher.deadline = deadline
    yield from (f"--- {labels[0]}\n", f"+++ {labels[1]}\n")
    for group in matcher.get_grouped_opcodes():
        (_, a1, _, b1, _), (_, _, a2, _, b2) = group[0], group[-1]
        yield f"@@ -{_range(a1, a2)} +{_range(b1, b2)} @@\n"
        for tag, i1, i2, j1, j2 in group:
            if tag == "equal":
                yield from (f" {line}" for line in before[i1:i2])
            else:
                yield from (f"-{line}" for line in before[i1:i2])
                yield from (f"+{line}" for line in after[j1:j2])


def _range(start: int, stop: int) -> str:
    length = stop - start
    return f"{start + 1}" if length == 1 else f"{start + (length > 0)},{length}"

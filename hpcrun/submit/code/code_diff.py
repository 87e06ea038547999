"""The difference between two versions of the code: names of files, and a patch."""

from __future__ import annotations

import difflib
from collections.abc import Mapping

ADDED, REMOVED, CHANGED = "added", "removed", "changed"
# Larger files are not compared line by line.
_LONGEST_TEXT = 1 << 20


class CodeDiff:
    """The files that differ between two results of `hpcrun.submit.code.snapshot.read` or ``look``.

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
        return "".join(
            _patch(name, self._before.get(name), self._after.get(name)) for name in self.files
        )


def _patch(name: str, before: bytes | None, after: bytes | None) -> str:
    lines = []
    for content in (before, after):
        if content is not None and (len(content) > _LONGEST_TEXT or b"\0" in content):
            return f"{name}: binary or large files differ\n"
        lines.append((content or b"").decode(errors="replace").splitlines(keepends=True))
    labels = (
        "/dev/null" if before is None else f"a/{name}",
        "/dev/null" if after is None else f"b/{name}",
    )
    found = difflib.unified_diff(lines[0], lines[1], *labels)
    return "".join(line if line.endswith("\n") else f"{line}\n" for line in found)

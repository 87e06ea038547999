"""The file that a converted spec is written to, and what ``hpcrun init --from`` tells of it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcrun.convert.conversion import Conversion, convert, read_script
from hpcrun.convert.line_fates import CARRIED, LEFT, NOT_NEEDED, LineFate
from hpcrun.errors import UsageError
from hpcrun.starter import project_text
from hpcrun.starter.file_plan import KEPT, PlannedFile
from hpcrun.text import plural, ranges


@dataclass(frozen=True)
class ConvertedSpec:
    """A converted script, and the files that are to be written."""

    script: Path
    conversion: Conversion
    spec: PlannedFile
    schema: PlannedFile

    def write(self) -> None:
        """Write the schema, and the spec that names it."""
        for one in (self.schema, self.spec):
            one.write()

    def to_data(self, *, dry_run: bool) -> dict[str, Any]:
        """Return it for JSON."""
        action = "would be " + self.spec.action if dry_run else self.spec.action
        place = {"script": str(self.script), "path": str(self.spec.path), "action": action}
        return {**place, **self.conversion.to_data()}

    def lines(self) -> Iterator[str]:
        """Yield what became of the script, what needs a person last."""
        done = self.conversion
        for fate in (CARRIED, NOT_NEEDED):
            found = done.of(fate)
            yield f"{fate}: {plural(len(found), 'command')}"
            yield from _grouped(found)
        left = [str(one) for one in done.of(LEFT)] + done.lost
        yield f"{LEFT}: {len(left) or 'nothing'}"
        yield from (f"  {one}" for one in left)

    def next_line(self) -> str:
        """Return what to type now."""
        return f"hpcrun check {shlex.quote(str(self.spec.path))}"


def _grouped(fates: list[LineFate]) -> Iterator[str]:
    """Yield the lines of each reason."""
    groups: dict[str, set[int]] = {}
    for one in fates:
        groups.setdefault(one.what, set()).update(range(one.line, one.last + 1))
    for what, numbers in groups.items():
        word = "line" if len(numbers) == 1 else "lines"
        yield f"  {word} {', '.join(ranges(numbers))}: {what}"


def converted(script: Path, directory: Path, spec: Path | None, *, force: bool) -> ConvertedSpec:
    """Convert a script, and plan its spec; nothing is written.

    Parameters
    ----------
    spec
        The spec's path; None for ``experiment.yaml`` in ``directory``.
    force
        A spec that is there may be replaced.

    Raises
    ------
    UsageError
        The script cannot be converted, or the spec is there already.
    """
    path = spec or directory / project_text.SPEC
    done = convert(read_script(script), script, path.parent)
    try:
        planned = PlannedFile.of(path, done.spec, force=force)
    except OSError as error:
        why = error.strerror or error
        raise UsageError(f"{path} cannot be read: {why}", hint="name another by -o") from None
    if planned.action == KEPT:
        hint = "name another by -o FILE, have it replaced by --force, or see it first by --dry-run"
        raise UsageError(f"{path} is there already, and differs; nothing was written", hint=hint)
    schema = path.parent / project_text.SCHEMA
    return ConvertedSpec(
        script, done, planned, PlannedFile.of(schema, project_text.schema("spec"), force=force)
    )

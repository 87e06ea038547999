"""The files that a converted script becomes, and what ``hpcrun init --from`` tells of them."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcrun.errors import UsageError
from hpcrun.text import visible
from hpcrun.tools.init.convert.conversion import Conversion, convert, read_script, shell_name
from hpcrun.tools.init.starter import project_text
from hpcrun.tools.init.starter.file_plan import KEPT, PlannedFile

_LEFT, _NUMBER = 58, 4


@dataclass(frozen=True)
class ConvertedSpec:
    """A converted script, and the files that are to be written."""

    script: Path
    conversion: Conversion
    spec: PlannedFile
    schema: PlannedFile
    shell: PlannedFile | None
    """None where the spec says all that the script does."""

    def write(self) -> None:
        """Write the schema and the shell file, and the spec that names them."""
        for one in filter(None, (self.schema, self.shell, self.spec)):
            one.write()

    def to_data(self, *, dry_run: bool) -> dict[str, Any]:
        """Return it for JSON."""
        action = "would be " + self.spec.action if dry_run else self.spec.action
        place = {"script": str(self.script), "path": str(self.spec.path), "action": action}
        return {**place, **self.conversion.to_data()}

    def written(self) -> Iterator[str]:
        """Yield a line about each file."""
        for one in filter(None, (self.spec, self.shell)):
            yield f"{one.action}: {one.path}"

    def lines(self) -> Iterator[str]:
        """Yield the script beside what became of each of its lines, and what the spec asks."""
        done = self.conversion
        yield f"{self.script.name:<{_LEFT + _NUMBER + 1}} | {self.spec.path.name}"
        for one in done.fates:
            text = one.text if len(one.text) <= _LEFT else f"{one.text[: _LEFT - 1]}…"
            number = str(one.line)
            what = one.what if one.fate == "in the spec" else f"{one.fate}: {one.what}"
            yield visible(f"{number:>{_NUMBER}} {text:<{_LEFT}} | {what}")
        if done.asks:
            yield f"the spec asks, by comments at {len(done.asks)} of its keys:"
            yield from (f"  {one}" for one in done.asks)

    def next_line(self) -> str:
        """Return what to type now."""
        return f"hpcrun check {shlex.quote(str(self.spec.path))}"


def converted(script: Path, directory: Path, spec: Path | None, *, force: bool) -> ConvertedSpec:
    """Convert a script, and plan its files: ``spec``, else ``experiment.yaml`` in a directory.

    Nothing is written; with ``force`` what is there may be replaced. Raise UsageError where the
    script cannot be converted, or a file is there already.
    """
    path = spec or directory / project_text.SPEC
    done = convert(read_script(script), script, shell_name(path, script))
    texts = [(path, done.spec)]
    if done.shell_file:
        texts.append((path.with_name(done.shell_file), done.shell))
    planned = []
    for place, text in texts:
        try:
            planned.append(PlannedFile.of(place, text, force=force))
        except OSError as error:
            why = error.strerror or error
            raise UsageError(f"{place} cannot be read: {why}", hint="name another by -o") from None
        if planned[-1].action == KEPT:
            hint = "name another by -o FILE, have it replaced by --force, or see it by --dry-run"
            what = f"{place} is there already, and differs; nothing was written"
            raise UsageError(what, hint=hint)
    schema = path.parent / project_text.SCHEMA
    made = PlannedFile.of(schema, project_text.schema("spec"), force=force)
    return ConvertedSpec(script, done, planned[0], made, planned[1] if planned[1:] else None)

"""The experiments that were submitted from a spec file."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path

from hpcrun.errors import UsageError
from hpcrun.host import expand_home
from hpcrun.state import files
from hpcrun.state.layout import ExperimentPaths, SubmissionPaths

# A plan's name and spec come first in its file.
_HEAD = 1 << 14
_SPEC_FILE = re.compile(r'"spec_file": ?("(?:[^"\\\\]|\\\\.)*")')


def submitted_from(
    experiments: Sequence[ExperimentPaths], argument: str
) -> dict[ExperimentPaths, str]:
    """Return the experiments that a spec file was submitted as, and its path in their plans.

    A name without a directory also stands for the one file of that name in another directory.
    Raises UsageError if experiments were submitted from several of these.
    """
    wanted = same_file(expand_home(argument))
    alike: dict[ExperimentPaths, str] = {}
    exact: dict[ExperimentPaths, str] = {}
    for experiment in experiments:
        for paths in reversed(experiment.submissions()):
            spec = spec_file(paths)
            if spec is not None and Path(spec).name == Path(argument).name:
                (exact if same_file(spec) == wanted else alike).setdefault(experiment, spec)
    if exact or "/" in argument or os.path.isfile(argument):  # noqa: PTH113 - `is_file` may raise
        return exact
    places = dict.fromkeys(map(same_file, alike.values()))
    if len(places) > 1:
        named = ", ".join(f"{one.name} (from {spec})" for one, spec in alike.items())
        raise UsageError(
            f"{argument!r} could be the spec of several experiments: {named}",
            hint="name the experiment, or the file with its directory",
        )
    return alike


def spec_file(paths: SubmissionPaths) -> str | None:
    """Return the spec's path of a submission, without reading all of its plan; None if unknown."""
    with contextlib.suppress(OSError, ValueError):
        with files.open_stream(paths.plan) as stream:
            found = _SPEC_FILE.search(stream.read(_HEAD).decode(errors="replace"))
        return str(json.loads(found[1])) if found else None
    return None


def same_file(path: str | Path) -> str:
    """Return the path by which two names of one file are equal."""
    try:
        return os.path.realpath(path)
    except (OSError, ValueError):
        return str(path)

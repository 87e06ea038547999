"""The protocol of a feature, and the features that are there.

A feature is a folder of `hpcrun.features` with all of its layers: its block of the spec, its part
of the compiler, of the checks before submission, of nodes, ranks and the supervisor, and what it
tells. The core calls the hooks below in the order of the folders' names, and knows no feature.
"""

from __future__ import annotations

import functools
import importlib
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from hpcrun.errors import HpcrunError

if TYPE_CHECKING:
    from hpcrun.compile.freeze import CompiledRun
    from hpcrun.compile.source.marked_tree import Reporter
    from hpcrun.fields import Kinds
    from hpcrun.run.copies.node_copies import CopiedData
    from hpcrun.run.protocol.launch import Launch, LaunchNode
    from hpcrun.state.layout import AttemptPaths, RunPaths, SubmissionPaths
    from hpcrun.state.ledger import Attempt
    from hpcrun.state.plan import RunPlan
    from hpcrun.state.spec.blocks import SpecBlocks
    from hpcrun.text import Say


class Event(NamedTuple):
    """The fields of a feature's record in the ledger, beside those of every record."""

    fields: Kinds
    needed: Collection[str] = ()
    """The fields that every such record has."""


class Enough(Exception):
    """The run has done enough, and why: its ranks are to save and leave, and it is ``pruned``."""


class NotWanted(HpcrunError):
    """The run is not to begin: it counts as cancelled until somebody submits it again."""


class SupervisorPart(Protocol):
    """A feature's part in the supervisor of one attempt."""

    def begin(self) -> None:
        """Act before the attempt looks for what it resumes from, in a thread of its own.

        Raise HpcrunError to end the attempt.
        """

    def turn(self) -> None:
        """Do what is due while ranks run: called several times a second, and must not block.

        Raise `Enough`, once, to end the run.
        """

    def end(self, seconds: float) -> None:
        """Finish after the last rank has ended, in at most so many seconds; raise nothing."""


class Feature:
    """The hooks of a feature, which the core calls; each may be left out.

    The name of its folder is that of its block in the spec. Modules that a hook needs are imported
    by it: this class is made wherever a spec is read, on compute nodes by the standard library.
    """

    about = ""
    """The purpose of its block, a sentence of docs/spec.md."""
    after = ""
    """The key of a spec that its block is listed behind."""
    block = ""
    """``module:attribute`` of the block's dataclass, made by `spec_dataclass`; empty for none."""
    asked_by = "", ""
    """A block of a run's spec, and the key of it that has a value where the run asks for this."""
    of_sessions = False
    """It acts on what ``hpcrun.session()`` does, and does nothing for other programs."""
    at_least: Mapping[str, int] = {}
    """Key of its block -> the least value."""
    placeholders: Sequence[str] = ()
    """The NAMES of ``${hpcrun:NAME}`` that `values` fills in."""
    session: Mapping[str, str] = {}
    """Name of a method of ``hpcrun.session()`` -> ``module:function``, which takes the launch file
    (None outside hpcrun) and the arguments."""
    events: Mapping[str, Event] = {}
    """Its records in the ledger, the newest of which an attempt has in ``of_features``."""

    def check(self, data: dict[str, Any], report: Reporter) -> None:
        """Report what is wrong in a resolved spec's data; make its paths absolute, in place."""

    def look_up(self, runs: Sequence[CompiledRun], root: Path, say: Say) -> Sequence[CompiledRun]:
        """Return runs that ask for this with what is frozen of others; raise UsageError."""
        return runs

    def preflight(
        self, runs: Sequence[RunPlan], coming: Collection[str], say: Callable[[str], object]
    ) -> None:
        """Look before submission if runs, some of which ask for this, find all; raise UsageError.

        ``coming`` are the experiments that they wait for; ``say`` tells what may yet be mended.
        """

    def needs(self, run: RunPlan) -> Mapping[str, str]:
        """Return the packages that the Python of a run that asks for this needs -> for what."""
        return {}

    def complete(self, run: RunPlan, submission: SubmissionPaths) -> bool:
        """Complete a run whose plan has not all of it, as its job begins; raise HpcrunError.

        Returns whether the plan is to be read again. Raise `NotWanted` if the run is not to begin.
        """
        return False

    def mounts(self, run: RunPlan) -> Sequence[str]:
        """Return the absolute paths that a container is to show, to read."""
        return ()

    def copies(self, run: RunPlan, directory: Path) -> CopiedData | None:
        """Return the data that a node copies before the ranks start; None for none.

        ``directory`` is that of the node's agent.
        """
        return None

    def values(self, run: SpecBlocks, node: LaunchNode) -> Mapping[str, str]:
        """Return placeholder -> its value on a node; ranks have each as ``HPCRUN_NAME``, too."""
        return {}

    def in_supervisor(
        self, run: RunPlan, paths: AttemptPaths, record: Callable[..., object]
    ) -> SupervisorPart | None:
        """Return the part in an attempt's supervisor; ``record(event, **fields)`` is the ledger."""
        return None

    def outside(self, run: RunPaths) -> str | None:
        """Return a noun for the files of a run that stay elsewhere when it is deleted, or None."""
        return None

    def tell(self, attempt: Attempt) -> Sequence[str]:
        """Return the sentences of ``hpcrun why`` about an attempt with records of `events`."""
        return ()

    def notice(self, attempt: Attempt) -> str | None:
        """Return a clause for ``hpcrun status``, where the newest attempt has such records."""
        return None


@functools.cache
def names() -> tuple[str, ...]:
    """Return the names of the features that are there, those of their folders."""
    package: Any = importlib.import_module("hpcrun.features")
    folder = package.__path__[0]
    if Path(folder).is_dir():
        inside = ((one.name, Path(one, "__init__.py")) for one in os.scandir(folder))
        return tuple(sorted(name for name, path in inside if path.exists()))
    # Of a zip file, by the path inside. `pkgutil` reads the same, and imports much for it.
    files = getattr(package.__loader__, "_files", None)
    if files is None:
        import pkgutil  # Python 3.13 has no such list before it is asked for

        found = pkgutil.iter_modules(package.__path__)
        return tuple(sorted(one.name for one in found if one.ispkg))
    depth = "hpcrun/features/NAME/__init__.py".count("/")
    paths = (one.replace(os.sep, "/") for one in files if one.endswith("__init__.py"))
    packages = [one.split("/") for one in paths if one.count("/") == depth]
    return tuple(sorted(one[2] for one in packages if one[:2] == ["hpcrun", "features"]))


@functools.cache
def every() -> dict[str, Feature]:
    """Return the features that are there, by name."""
    return {name: importlib.import_module(f"hpcrun.features.{name}").FEATURE for name in names()}


def features_of(spec: Mapping[str, Any]) -> list[Feature]:
    """Return the features that a run's spec asks for."""
    keys = ((one, *one.asked_by) for one in every().values())
    return [one for one, block, key in keys if (spec.get(block) or {}).get(key)]


@functools.cache
def blocks() -> tuple[str, ...]:
    """Return the names of the features that have a block of the spec, which is that block's."""
    return tuple(name for name, one in every().items() if one.block)


def session_method(name: str, launch: Launch | None) -> Callable[..., Any] | None:
    """Return the method of ``hpcrun.session()`` that a feature adds; None if none adds it."""
    from hpcrun.extensions import attribute_at

    for one in every().values():
        if name in one.session:
            return functools.partial(attribute_at(one.session[name]), launch)
    return None

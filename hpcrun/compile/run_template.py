"""All of a run but its ``config``: what the runs of a sweep mostly share, checked once for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hpcrun.compile import identity
from hpcrun.compile.source.marked_tree import Tree
from hpcrun.compile.source.problems import Problems
from hpcrun.compile.spec import schema
from hpcrun.compile.sweep.resolver import Resolved
from hpcrun.compile.target import entry
from hpcrun.errors import Problem
from hpcrun.state.plan import Entry
from hpcrun.state.spec.experiment import Spec


class Frame:
    """A checked spec into which a ``config`` is put.

    Parameters
    ----------
    spec
        Without its ``config``, which has the default.
    located
        Where the entry is; None where it was not found.
    root
        What is frozen; None as well.
    directory
        That of the spec.
    problems
        What is wrong with it, whatever the ``config``.
    """

    def __init__(
        self,
        spec: dict[str, Any],
        located: entry.Located | None,
        root: Path | None,
        directory: Path,
        problems: list[Problem],
    ) -> None:
        self.problems = problems
        self._spec = {name: spec[name] for name in spec if name not in ("extends", "sweep")}
        self._located, self._root, self._directory = located, root, directory
        self._begun: identity.Begun | None = None

    def config(self, resolved: Resolved, problems: Problems) -> dict[str, Any]:
        """The checked ``config`` of a point."""
        found = resolved.data.get("config")
        if type(found) is dict:
            return found
        data = {"config": found} if "config" in resolved.data else {}
        checked = schema.Checker(resolved.tree, Spec, problems).block(data, Spec)["config"]
        assert isinstance(checked, dict)
        return checked

    def entry(self, config: dict[str, Any], tree: Tree, problems: Problems) -> Entry | None:
        """The entry with its arguments; None where it was not found."""
        if self._located is None or self._root is None:
            return None
        return entry.finish(
            self._located,
            self._root,
            self._spec["entry"],
            config,
            self._spec["args"],
            tree,
            problems,
        )

    def identity(self, found: Entry, config: dict[str, Any], swept: dict[str, Any]) -> str:
        """The run's identity, as `hpcrun.compile.identity` has it."""
        if self._begun is None:
            assert self._root is not None
            self._begun = identity.begin(
                *identity.places(found, self._root, self._directory),
                self._spec["args"],
                self._spec["deepspeed"],
                self._spec["checkpoint"]["initialize_from"],
            )
        return self._begun(found, config, swept)

    def spec(self, config: dict[str, Any]) -> dict[str, Any]:
        """The whole spec; its other blocks are shared, so nobody may change them."""
        return {**self._spec, "config": config}

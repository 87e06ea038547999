"""Staging: data that nodes copy to their own disks before the ranks start, ``staging.paths``.

In reading order: `staging_block` (of the spec, and its checks), `staged_data` (what the paths name,
a node's links to it, and where a path is found there). The copies themselves are
`hpcrun.run.copies`, which frozen environments use too.

To let a spec say more of a path: a field of the block, used in `staged_data.find`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hpcrun.feature import Feature

if TYPE_CHECKING:
    from pathlib import Path

    from hpcrun.compile.source.marked_tree import Reporter
    from hpcrun.features.staging.staged_data import StagedData
    from hpcrun.run.protocol.launch import LaunchNode
    from hpcrun.state.plan import RunPlan
    from hpcrun.state.spec.blocks import SpecBlocks


class StagingFeature(Feature):
    """Copies of data on the nodes' own disks."""

    about = "Data that each node copies to its own disk."
    after = "progress"
    block = "hpcrun.features.staging.staging_block:Staging"
    asked_by = "staging", "paths"
    placeholders = ("staged",)
    session: Mapping[str, str] = {"staged": "hpcrun.features.staging.staged_data:local"}

    def check(self, data: dict[str, Any], report: Reporter) -> None:
        from hpcrun.features.staging import staging_block

        staging_block.check(data, report)

    def preflight(
        self, runs: Sequence[RunPlan], coming: Collection[str], say: Callable[[str], object]
    ) -> None:
        from hpcrun.features.staging import staged_data

        staged_data.check(runs, coming, say)

    def mounts(self, run: RunPlan) -> Sequence[str]:
        from hpcrun.features.staging import staged_data

        return [staged_data.above_glob(path) for path in run.block("staging").paths]

    def copies(self, run: RunPlan, directory: Path) -> StagedData | None:
        paths = run.block("staging").paths
        if not paths:
            return None
        from hpcrun.features.staging.staged_data import StagedData

        return StagedData(directory, paths)

    def values(self, run: SpecBlocks, node: LaunchNode) -> Mapping[str, str]:
        if not run.block("staging").paths:
            return {}
        from hpcrun.features.staging import staged_data

        return {"staged": str(staged_data.place_on(node))}


FEATURE = StagingFeature()

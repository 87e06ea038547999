"""Copies of finished checkpoints in an object store, and their way back to a root that lost them.

Read `block` (what a spec says), `copy_records` (what the ledger keeps of copies), `store` (what is
done there, by fsspec), `copier` and `fetcher` (checkpoints that go there and come back), `process`
(the program beside the supervisor that runs either) and `copies` (its start, reports and end).

A copy is complete once its manifest is there, the last of its objects. What the ledger has on
record alone is fetched, with the digest of the manifest that was copied: so neither another run's
objects nor what somebody has put in their place is loaded, and no listing is needed. The store's
library is imported in `process` alone, so that neither submission nor the supervisor needs it.

To add a store: an entry of `block.LIBRARIES`, and tests against a real server of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hpcrun.feature import Feature

if TYPE_CHECKING:
    from hpcrun.compile.source.marked_tree import Reporter
    from hpcrun.feature import Event
    from hpcrun.features.object_storage.copies import CheckpointCopies
    from hpcrun.state.layout import AttemptPaths, RunPaths
    from hpcrun.state.ledger import Attempt
    from hpcrun.state.plan import RunPlan


class ObjectStorageFeature(Feature):
    """Copies of finished checkpoints in an object store."""

    about = "Copies of finished checkpoints in an object store."
    after = "checkpoint"
    block = "hpcrun.features.object_storage.block:ObjectStorage"
    asked_by = "object_storage", "to"
    of_sessions = True
    at_least: Mapping[str, int] = {"keep": 1}

    @property
    def events(self) -> Mapping[str, Event]:  # type: ignore[override]
        from hpcrun.features.object_storage import copy_records

        return copy_records.EVENTS

    def check(self, data: dict[str, Any], report: Reporter) -> None:
        from hpcrun.features.object_storage import block

        block.check(data, report)

    def needs(self, run: RunPlan) -> Mapping[str, str]:
        from hpcrun.features.object_storage import block

        return block.needs(run)

    def in_supervisor(
        self, run: RunPlan, paths: AttemptPaths, record: Callable[..., object]
    ) -> CheckpointCopies | None:
        from hpcrun.features.object_storage import block

        asked = block.asked_copies(run.spec)
        if asked is None:
            return None
        from hpcrun.features.object_storage import copies

        return copies.of_attempt(paths, asked, record)

    def outside(self, run: RunPaths) -> str | None:
        from hpcrun.features.object_storage import copy_records

        places = {one["place"]: None for one in copy_records.copies(copy_records.read_records(run))}
        return f"copies of its checkpoints in {', '.join(places)}" if places else None

    def tell(self, attempt: Attempt) -> Sequence[str]:
        from hpcrun.features.object_storage import copy_records

        return [*copy_records.sentences(attempt.of_features)]

    def notice(self, attempt: Attempt) -> str | None:
        from hpcrun.features.object_storage import copy_records

        return copy_records.notice(attempt.of_features)


FEATURE = ObjectStorageFeature()

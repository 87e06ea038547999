"""What is expected of a tracker: see `hpcrun.run.tracking.interface.Tracker`."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from hpcrun.compile import added_keys
from hpcrun.compile.spec import schema
from hpcrun.extensions import TRACKERS
from hpcrun.run.tracking.interface import RunDescription
from hpcrun.state.metrics_file import Line
from hpcrun.testing.expectation import expect, expect_attributes, expect_call, expecting, name_of

ENDS = ("completed", "failed", "cancelled", None)


def check_tracker(
    tracker: Any,
    settings: Mapping[str, Any] | None = None,
    *,
    name: str = "mine",
    arrived: Callable[[Path], Iterable[int]] | None = None,
) -> None:
    """Check that a class is a tracker.

    Parameters
    ----------
    settings
        The block ``tracking.NAME`` of a spec, over the defaults of the class's Settings.
    name
        The name of its entry point.
    arrived
        Returns the steps that are there of a run, from the directory that the tracker was given,
        once it is closed. Without it the suite checks no more than that nothing is raised.
    """
    expect_attributes(tracker, TRACKERS.needs)
    block = getattr(tracker, "Settings", dict[str, Any])
    wrong = [*added_keys.problems(block)]
    expect(not wrong, f"{name_of(tracker)}.Settings cannot be a block: {'; '.join(wrong)}")
    library = getattr(tracker, "library", None)
    expect(
        library is None or isinstance(library, str), f"library is {library!r}, and no module's name"
    )
    expect_call(tracker, 4, f"{name_of(tracker)}(run, directory, state, step)")
    given = {} if block == dict[str, Any] else schema.defaults(block)
    with tempfile.TemporaryDirectory() as directory:
        _Trial(tracker, name, {**given, **(settings or {})}, Path(directory), arrived).run()


class _Trial:
    """One run that is forwarded to a tracker by several processes, as of a job that is requeued."""

    def __init__(
        self,
        tracker: Any,
        name: str,
        settings: dict[str, Any],
        directory: Path,
        arrived: Callable[[Path], Iterable[int]] | None,
    ) -> None:
        self._tracker, self._arrived = tracker, arrived
        self._directory = directory / "trackers" / name
        self._run = RunDescription(
            experiment="study",
            name="study/3 lr=0.1",
            identity="0123456789abcdef",
            parameters={
                "config": {"lr": 0.1, "layers": [1, 2], "nothing": None},
                "deepspeed": {"train_batch_size": 8},
                "swept": {"config.lr": 0.1},
            },
            tracking={name: settings},
        )

    def run(self) -> None:
        """Forward the run: four processes, of which the second is killed before it is noted."""
        first = self._open({}, 0)
        state = self._send(first, range(1, 6), None)
        self._send(first, range(6, 8), None)
        self._close(first, None)
        # The state after the last lines was not written: they are sent again.
        second = self._open(state, 5)
        state = self._send(second, range(6, 9), None)
        self._close(second, None)
        self._expect_steps(range(1, 9))
        # An attempt that begins again at step 7.
        third = self._open(state, 8)
        state = self._send(third, range(8, 11), 7)
        self._close(third, ENDS[0])
        for ended in ENDS:
            self._close(self._open(state, 10), ended)
        self._expect_steps(range(1, 11))

    def _open(self, state: dict[str, Any], step: int) -> Any:
        what = f"{name_of(self._tracker)}(run, directory, {state!r}, {step})"
        with expecting(what):
            opened = self._tracker(self._run, self._directory, state, step)
        starts_over = getattr(opened, "starts_over", None)
        expect(
            isinstance(starts_over, bool),
            f"starts_over is {starts_over!r}; expected is True or False: whether lines that an "
            "earlier process sent never arrived",
        )
        expect(not starts_over, f"{what}.starts_over is True, and every line had been sent")
        return opened

    def _send(self, opened: Any, steps: Iterable[int], kept: int | None) -> dict[str, Any]:
        lines = [Line(step, 1e9 + step, {"loss": 1 / step, "val/loss": 2.0}) for step in steps]
        with expecting(f"send({len(lines)} lines of the steps {[*steps]}, {kept})"):
            opened.send(lines, kept)
        state = getattr(opened, "state", None)
        try:
            same = json.loads(json.dumps(state)) == state and isinstance(state, dict)
        except (TypeError, ValueError):
            same = False
        expect(same, f"state is {state!r}; expected is a dictionary that JSON gives back unchanged")
        assert isinstance(state, dict)
        return dict(state)

    def _close(self, opened: Any, ended: str | None) -> None:
        with expecting(f"close({ended!r})"):
            opened.close(ended)

    def _expect_steps(self, steps: Collection[int]) -> None:
        if self._arrived is None:
            return
        found = Counter(self._arrived(self._directory))
        for step in steps:
            expect(found[step] > 0, f"step {step} was sent and is not there")
            expect(found[step] == 1, f"step {step} is there {found[step]} times; expected is once")

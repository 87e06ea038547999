"""Ranks compare their waits for data after 8 steps, 16, 32, …"""

from __future__ import annotations

from typing import Any

from hpcrun.run.data.wait_record import DataWaits


class Ranks:
    """Four ranks, of which the last waits nine times as long as this one."""

    world_size = 1  # no process group is asked for

    def gather(self, value: float | None) -> list[float | None]:
        return [value, value, value, None if value is None else 9 * value]


class Loader:
    waits = 0.01

    def take_wait(self) -> float:
        return self.waits


class Events:
    def __init__(self) -> None:
        self.written: list[dict[str, Any]] = []

    def write(self, event: str, **details: Any) -> None:
        self.written.append({"event": event, **details})


def test_the_longest_waits_are_recorded() -> None:
    events = Events()
    waits = DataWaits(Ranks(), events)  # type: ignore[arg-type]
    for step in range(1, 33):
        assert waits.after_step(step, [Loader()], 0.1) == 0.01
    assert [(one["step"], one["steps"]) for one in events.written] == [(8, 8), (16, 8), (32, 16)]
    assert events.written[-1] == {
        **{"event": "data_waits", "step": 32, "steps": 16, "median": 0.1, "world_size": 4},
        "ranks": [[3, 0.9], [0, 0.1], [1, 0.1], [2, 0.1]],
    }


def test_without_waits_nothing_is_recorded() -> None:
    events = Events()
    waits = DataWaits(Ranks(), events)  # type: ignore[arg-type]
    assert {waits.after_step(step, [], 0.1) for step in range(1, 20)} == {None}
    assert events.written == []


def test_ranks_without_loaders_wait_for_each_other_once() -> None:
    class Alone:
        world_size = 1
        asked = 0

        def gather(self, own: object) -> list[object]:
            self.asked += 1
            return [own]

    ranks = Alone()
    waits = DataWaits(ranks, Events())  # type: ignore[arg-type]
    for step in range(1, 40):
        waits.after_step(step, [], 0.1)
    assert ranks.asked == 1
    waits = DataWaits(ranks, Events())  # type: ignore[arg-type]
    for step in range(1, 40):
        waits.after_step(step, [Loader()], 0.1)
    assert ranks.asked == 1 + 3

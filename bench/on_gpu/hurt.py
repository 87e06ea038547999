"""Parts of `bench.on_gpu` in which runs are hurt: a killed rank, and memory that runs out."""

from __future__ import annotations

import base64
import json
import time
import zlib
from typing import Any

from bench.on_gpu.desk import Desk
from bench.on_gpu.record import Part
from hpcrun.state import ledger


def training(desk: Desk, part: Part) -> None:
    """Train at each ZeRO stage, once as it is and once with a killed rank, all on one card."""
    sizes, name = desk.sizes, "zero"
    kill_at = sizes.steps // 2 + 2
    spec = desk.spec(
        name,
        sizes.small,
        config={"deterministic": True},
        checkpoint={"every": sizes.steps // 4},
        sweep={
            "grid": {
                "deepspeed.zero_optimization.stage": list(sizes.stages),
                "config.kill_at": [0, kill_at],
            },
            "max_parallel": 2 * len(sizes.stages) if desk.card.on_gpu else 2,
        },
    )
    watch = _Watch(desk, part, name)
    desk.hpcrun(part, "submit", spec, "--wait", meanwhile=watch)
    found = []
    for index, stage in enumerate(sizes.stages):
        whole, killed = desk.metrics(name, 2 * index), desk.metrics(name, 2 * index + 1)
        found.append({"stage": stage, **_compared(whole, killed, sizes.steps),
                      **_recovery(desk, name, 2 * index + 1)})  # fmt: skip
        part.note(stages=found)
        part.say(_stage_line(found[-1], sizes.steps))
    _telemetry(desk, part, name, watch.seen)
    if not all(one["same"] and one["attempts"] == 2 for one in found):
        raise RuntimeError("a run that was killed did not come back to the same losses")


class _Watch:
    """Asks `hpcrun status` for the card's memory, until it tells some."""

    def __init__(self, desk: Desk, part: Part, name: str) -> None:
        self._desk, self._part, self._name = desk, part, name
        self._next = time.monotonic() + 8
        self.seen: dict[str, Any] = {}

    def __call__(self) -> None:
        if self.seen or not self._desk.card.on_gpu or time.monotonic() < self._next:
            return
        self._next = time.monotonic() + 1.5
        told = self._desk.hpcrun(self._part, "status", self._name, "--json", check=False)
        # Nothing is told before the submission is on disk.
        for one in json.loads(told) if told.startswith("[") else ():
            if one["gpu_memory"]:
                self.seen = {key: one[key] for key in ("gpu_memory", "gpu_memory_total")}


def _compared(whole: dict[int, Any], killed: dict[int, Any], steps: int) -> dict[str, Any]:
    """Return whether both have the same losses at all steps, and how far apart they are."""
    wanted = range(1, steps + 1)
    if [*whole] != [*wanted] or sorted(killed) != [*wanted]:
        return {"same": False, "apart": None, "last": None,
                "steps": [len(whole), len(killed)]}  # fmt: skip
    pairs = [(whole[step]["loss"], killed[step]["loss"]) for step in wanted]
    parted = [step for step, (one, other) in enumerate(pairs, 1) if one != other]
    return {
        "same": not parted,
        "parted_at": min(parted, default=None),
        "apart": max(abs(other / one - 1) for one, other in pairs),
        "last": pairs[-1][1],
        "first": pairs[0][1],
    }


def _recovery(desk: Desk, name: str, number: int) -> dict[str, Any]:
    """Return how the run that was killed came back."""
    run = desk.run(name, number)
    attempts = ledger.read(run)
    found: dict[str, Any] = {
        "attempts": len(attempts),
        "causes": [one.kind for one in attempts],
        "actions": [one.action for one in attempts],
    }
    if len(attempts) > 1:
        steps = desk.metrics(name, number)
        again = min(
            line["time"] for line in steps.values() if line["time"] > attempts[1].began
        )  # fmt: skip
        ended = (attempts[0].ended or {})["time"]
        found["seconds_to_next_step"] = again - ended
        found["restored_step"] = (attempts[1].ended or {}).get("restored_step")
    return found


def _stage_line(found: dict[str, Any], steps: int) -> str:
    same = "the same losses to the bit" if found["same"] else \
        f"losses apart: {found['apart']}, from step {found.get('parted_at')}"  # fmt: skip
    came = found.get("seconds_to_next_step")
    back = "not back" if came is None else f"{came:.1f} s from its end to the next step"
    first, last = found.get("first") or 0, found["last"] or 0
    return (
        f"ZeRO {found['stage']}: {steps} steps, loss {first:.4f} to {last:.4f}; killed: "
        f"{' then '.join(map(str, found['causes']))}, {back}, {same}"
    )


def _telemetry(desk: Desk, part: Part, name: str, seen: dict[str, Any]) -> None:
    """Look for the card in `status` (while it ran) and in `report`."""
    page = desk.code / "report.html"
    desk.hpcrun(part, "report", name, "-o", page, "--force")
    shown = {}
    for run in _data_of(page.read_text())["runs"]:
        if run["telemetry"]:
            values = run["telemetry"]["values"]
            shown[run["name"]] = [name for name, nodes in values.items() if nodes]
    part.note(status=seen, report=shown)
    used = f"{seen['gpu_memory'] / 2**30:.1f} of {seen['gpu_memory_total'] / 2**30:.1f} GiB"\
        if seen else "no figure of a GPU"  # fmt: skip
    series = sorted({one for names in shown.values() for one in names})
    part.say(f"status while they trained: {used}; report of {len(shown)} runs: "
             f"{', '.join(series)}")  # fmt: skip
    if desk.card.on_gpu and not (seen and "gpu_memory" in series and "power" in series):
        raise RuntimeError("telemetry of the GPU is not in status and report")


def _data_of(page: str) -> dict[str, Any]:
    """Return the data that a report's scripts draw."""
    text = page.partition('id="data">')[2].partition("<")[0]
    found: dict[str, Any] = json.loads(zlib.decompress(base64.b64decode(text)))
    return found


def out_of_memory(desk: Desk, part: Part) -> None:
    """Begin with micro batches that the card cannot hold."""
    model, card = desk.sizes.middle, desk.card
    most = card.memory / model.sample_bytes if card.on_gpu else model.micro
    micro = 1
    while micro < 1.25 * most:
        micro *= 2
    stand_in = {} if card.on_gpu else {"stand_in_above": micro // 2}
    if not card.on_gpu:
        part.say("no card: the program raises what a card would say, a stand-in")
    spec = desk.spec(
        "memory",
        model,
        micro=micro,
        config={"total_steps": 3, **stand_in},
        recovery={"warm_after": None, "shrink_micro_batch": 3},
    )
    desk.hpcrun(part, "submit", spec, "--wait", check=False)
    attempts = ledger.read(desk.run("memory"))
    told = [
        {
            "kind": one.kind,
            "exception": one.cause.get("exception"),
            "message": str(one.cause.get("message"))[:400],
            "micro_batch": one.started.get("micro_batch", micro),
            "action": one.action,
        }
        for one in attempts
    ]
    why = desk.hpcrun(part, "why", "memory")
    steps = len(desk.metrics("memory"))
    part.note(micro=micro, attempts=told, why=why, steps=steps, stand_in=not card.on_gpu)
    part.say("micro batches: " + ", ".join(f"{one['micro_batch']} ({one['kind'] or 'completed'})"
                                           for one in told))  # fmt: skip
    part.say(next((line.strip() for line in why.splitlines() if "memory" in line), "why: nothing"))
    kinds = [one["kind"] for one in told]
    if len(kinds) < 2 or {*kinds[:-1]} != {"out_of_memory"} or steps != 3:
        raise RuntimeError(f"it was not told and mended as it should be: {kinds}, {steps} steps")

"""Parts of `bench.on_gpu` about saves behind the training, and `hpcrun profile` and `tune`."""

from __future__ import annotations

import statistics

from bench.on_gpu.desk import Desk
from bench.on_gpu.record import Part

# `tune` leaves the time for its last, and to write its spec.
_LAST = 15


def save(desk: Desk, part: Part, engine: str = "deepspeed", stage: int = 1) -> None:
    """Train with saves behind the training, and time DeepSpeed's own beside them."""
    every, name = desk.sizes.save_every, f"save-{engine}"
    plainly = every // 2 if engine == "deepspeed" else 0
    total = 3 * every - 1
    spec = desk.spec(
        name,
        desk.sizes.middle,
        adam=desk.adam.arguments(part),
        stage=stage,
        config={"total_steps": total, "save_plainly": plainly, "engine": engine},
        checkpoint={"every": every, "asynchronous": True},
    )
    desk.hpcrun(part, "run", spec, "--new", "-q")
    steps = desk.metrics(name)
    # The last save is no longer behind anything.
    saved = [one for one in desk.session(name, "saved") if one["step"] < total]
    quiet = [steps[step]["step_seconds"] for step in range(every // 2 + 2, every + 1)]
    behind = [steps[step]["step_seconds"] for step in range(every + 1, total)]
    found = {
        "bytes": saved[0]["bytes"],
        "step_seconds": statistics.median(quiet),
        "step_seconds_behind": statistics.fmean(behind),
        "blocked": [one["blocked"] for one in saved],
        "durable_after": [one["seconds"] for one in saved],
        "plain_save": steps[plainly]["plain_save"] if plainly else None,
    }
    part.note(**found)
    (first, *later), step = found["blocked"], found["step_seconds"]
    blocked = max(later)
    part.say(
        f"{found['bytes'] / 1e9:.2f} GB of state: training stood still {first:.2f} s at the first "
        f"save, which allocates memory, and {blocked:.2f} s at the next "
        f"({100 * blocked / (every * step):.1f} % of {every} steps of {1000 * step:.0f} ms); on "
        f"disk after {max(found['durable_after']):.1f} s"
        + (f"; engine.save_checkpoint and fsync {found['plain_save']:.1f} s" if plainly else "")
    )
    part.say(
        f"a step in the mean {1000 * found['step_seconds_behind']:.1f} ms with saves behind it, "
        f"{1000 * statistics.fmean(quiet):.1f} ms without"
    )


def profile(desk: Desk, part: Part) -> None:
    """Profile the middle model by `hpcrun profile`."""
    model = desk.sizes.middle
    spec = desk.spec("profiled", model, adam=desk.adam.arguments(part), config={"total_steps": 50})
    found = desk.json(part, "profile", spec, "--steps", 5)
    (rank,) = found["ranks"]
    parts = {name: seconds / rank["step"] for name, seconds in rank["parts"].items()}
    off = sum(parts.values()) - 1
    names = ("device", "dtype", "bare", "step", "flops", "peak", "memory", "utilization")
    kept = {name: rank[name] for name in (*names, "device_bytes", "problems", "trace_bytes")}
    part.note(parts=parts, parts_off=off, rank=kept)
    told = ", ".join(f"{name} {100 * share:.1f} %" for name, share in parts.items())
    mfu = "unknown"
    if rank["utilization"] is not None:
        mfu = f"{100 * rank['utilization']:.1f} %"
    part.say(
        f"{rank['device']}: a step {1000 * rank['bare']:.1f} ms, profiled "
        f"{1000 * rank['step']:.1f} ms; {told}; parts off by {off:+.2%}"
    )
    part.say(
        f"MFU {mfu} by counted operations; problems: " + (", ".join(rank["problems"]) or "none")
    )
    if abs(off) > 0.05 or rank["problems"]:
        raise RuntimeError("the parts do not add up, or there were problems")


def tune(desk: Desk, part: Part) -> None:
    """Look for the fastest configuration of the middle model by `hpcrun tune`."""
    micros, stages = desk.sizes.tuned
    spec = desk.spec("tuned", desk.sizes.middle, micro=max(micros))
    seconds = int(part.left) - _LAST
    space = {"train_micro_batch_size_per_gpu": micros, "zero_optimization.stage": stages}
    asked = [word for key, values in space.items()
             for word in ("--space", f"deepspeed.{key}={','.join(map(str, values))}")]  # fmt: skip
    limit = f"00:{seconds // 60:02}:{seconds % 60:02}"
    found = desk.json(part, "tune", spec, *asked, "--time", limit)
    kept = [{key: one.get(key) for key in ("label", "status", "step_seconds", "peak_bytes")}
            for one in found["candidates"]]  # fmt: skip
    part.note(best=found["best"], candidates=kept)
    for one in kept:
        seconds_a_step = one["step_seconds"]
        told = f"{1000 * seconds_a_step:.1f} ms a step" if seconds_a_step else "not measured"
        part.say(f"{one['label']}: {told} ({one['status']})")
    if found["best"] is None:
        raise RuntimeError("no trial came to an end")

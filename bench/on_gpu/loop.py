"""The part of `bench.on_gpu` that has hpcrun's loop and a bare script take turns on one card."""

from __future__ import annotations

import json
import os
import statistics
import sys
from pathlib import Path
from typing import Any

from bench.on_gpu.desk import DETERMINISTIC, Desk
from bench.on_gpu.record import Part
from bench.turns import Referee
from hpcrun.run.node import op_cache
from hpcrun.run.node.rendezvous_port import PortReservation

SIDES = ("hpcrun", "bare")
# The bare script may be apart by what a card's kernels do in another order.
LIKE = 0.02


def loop(desk: Desk, part: Part) -> None:
    """Let both train the causal language model, in turns of a few steps: A B B A."""
    warm_up, turns, block = desk.sizes.turns
    if not desk.card.on_gpu:
        part.say("steps on processors wait for nothing: what reading a loss costs is not in these")
    name, model = "loop", desk.sizes.middle
    socket = desk.root.with_name("turns")
    pauses = [1, *range(warm_up + 1, warm_up + turns * block + 2, block)]
    total = warm_up + turns * block + 1
    config = {
        "program": "causal_language_model",
        "total_steps": total,
        "evaluate_every": 0,
        "data_bytes": 2_000_000,
        "tokenizer": None,
        "turns": str(socket),
        "deterministic": True,
        "side": SIDES[0],
    }
    schedule = {"type": "WarmupLR", "params": {"warmup_num_steps": 10}}
    spec = desk.spec(
        name,
        model,
        entry="training_hpcrun.py:train",
        config=config,
        checkpoint={"every": None},
    )
    _add_schedule(spec, schedule)
    compiled = desk.json(part, "plan", spec)["runs"][0]["spec"]
    (desk.code / "deepspeed.json").write_text(json.dumps(compiled["deepspeed"]))
    (desk.code / "config.json").write_text(json.dumps(compiled["config"]))
    # The first turn of each is what comes before.
    order = [SIDES[(turn + place) % 2] for turn in range(turns + 1) for place in (0, 1)]
    with Referee(socket, SIDES, 1) as referee:
        log = desk.code / "loop.out"
        started = desk.start("run", spec, "--new", "-q", log=log)
        desk.program(*_bare(desk))
        try:
            referee.welcome(pauses, part.left)
            for side in order:
                referee.turn(side)
                _ = part.left
            results = {side: found[0] for side, found in referee.end().items()}
        except (OSError, ValueError) as error:
            bare = (desk.code / "bare.err").read_text()[-1500:]
            desk.end()
            raise RuntimeError(f"a side did not come to its end: {error}{desk.tails()}\n{bare}")\
                from error  # fmt: skip
    desk.wait(part, started, log)
    told = _compared(results, warm_up, turns, block, total)
    part.note(**told, seconds_of_steps={s: results[s]["seconds"] for s in SIDES})
    ours, theirs = (f"{1000 * told[side]:.2f} ms" for side in SIDES)
    part.say(
        f"{turns} turns of {block} steps each: hpcrun {ours} a step, bare {theirs} (which reads "
        f"its loss at each); hpcrun {told['slowdown']:+.2%} in the median of turns, "
        f"{told['of_sums']:+.2%} of the sums"
    )
    alike = "the same to the bit" if told["same"] else f"apart by {told['apart']:.1e}"
    part.say(f"processor time of the rank in them: {told['processor']:+.1%}; losses: {alike}")
    if told["apart"] > LIKE:
        raise RuntimeError("the two sides did not do the same work")


def _add_schedule(spec: Path, schedule: dict[str, Any]) -> None:
    """Add a scheduler to a spec, as both programs read their rate from it."""
    import yaml

    data = yaml.safe_load(spec.read_text())
    data["deepspeed"]["scheduler"] = schedule
    spec.write_text(yaml.safe_dump(data, sort_keys=False))


def _bare(desk: Desk) -> tuple[list[str], Path, dict[str, str]]:
    """Return the bare script's command, its log and its environment: srun's, of one rank."""
    port = PortReservation(os.getpid())
    number = port.port
    port.release()
    argv = [sys.executable, "training_bare.py", "--config", "config.json"]
    argv += ["--deepspeed-config", "deepspeed.json", "--log", "bare-loss.log"]
    variables = {
        **{"SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_LOCALID": "0"},
        **{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(number)},
        "OMP_NUM_THREADS": "4" if desk.card.on_gpu else "1",
        **DETERMINISTIC,
    }
    if not desk.card.on_gpu:
        # What runs before had compiled: DeepSpeed's collectives of processors.
        builders, extensions = ["ShareMemCommBuilder"], desk.code / "extensions"
        op_cache.copy(op_cache.of_user(), str(op_cache.key(builders)), extensions)
        variables |= {"DS_ACCELERATOR": "cpu", "GLOO_SOCKET_IFNAME": "lo",
                      "TORCH_EXTENSIONS_DIR": str(extensions)}  # fmt: skip
    return argv, desk.code / "bare.out", desk.environment(**variables)


def _compared(
    results: dict[str, Any], warm_up: int, turns: int, block: int, total: int
) -> dict[str, Any]:
    """Return how much longer hpcrun's turns took than the bare script's beside them."""
    sums = {}
    for side in SIDES:
        seconds = results[side]["seconds"]
        starts = range(warm_up, warm_up + turns * block, block)
        sums[side] = [sum(seconds[start : start + block]) for start in starts]
    losses = [results[side]["losses"] for side in SIDES]
    if {len(one) for one in losses} != {total}:
        raise RuntimeError(f"a side did not take all steps: {[len(one) for one in losses]}")
    ratios = [one / other for one, other in zip(sums["hpcrun"], sums["bare"], strict=True)]
    steps = slice(warm_up, warm_up + turns * block)
    processor = {side: sum(results[side]["processor"][steps]) for side in SIDES}
    pairs = [*zip(*losses, strict=True)]
    return {
        **{side: sum(sums[side]) / (turns * block) for side in SIDES},
        "slowdown": statistics.median(ratios) - 1,
        "of_sums": sum(sums["hpcrun"]) / sum(sums["bare"]) - 1,
        "turns": ratios,
        "processor": processor["hpcrun"] / processor["bare"] - 1,
        "same": all(one == other for one, other in pairs),
        "losses": losses,
        "apart": max(abs(one / other - 1) for one, other in pairs),
    }

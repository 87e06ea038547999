"""Our training loop against the same model in a bare script, on the same nodes.

    python -m bench.training [--engine NAME | --program NAME] [--pairs 10] [--steps 100]
        [--against COMMIT] [--output bench/results]

Brings up the test bed's Slurm (root) with two nodes. For every pair, hpcrun submits one run and
sbatch one job of the peer; both stand on both nodes with one rank each and take turns of a few
steps, so that whatever else the machine does hits both alike. See bench/README.md.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import Any

from bench import against
from bench import training_report as report
from bench.publish import add_options, circumstances, publish
from bench.turns import Referee
from tests.cluster.workbench import Workbench
from tests.testbed import Cluster

HERE = Path(__file__).parent
NODES = 2
SIDES = ("hpcrun", "bare")
# What stands beside the ranks, by a word of its command.
_BESIDE = {"supervisor": "hpcrun.run.supervisor", "agents": "hpcrun.run.agent", "warm": "--warm"}

MODEL = {"layers": 4, "width": 256, "heads": 4, "context": 128}
SPEC: dict[str, Any] = {
    "entry": "training_hpcrun.py:train",
    "cluster": "bed",
    "config": {
        "program": "language_model",
        "seed": 1,
        "evaluate_every": 0,
        "data_bytes": 2_000_000,
        "model": MODEL,
    },
    "deepspeed": {
        "train_batch_size": 4,
        "train_micro_batch_size_per_gpu": 2,
        "gradient_clipping": 1.0,
        "zero_optimization": {"stage": 1},
        "optimizer": {
            "type": "AdamW",
            "params": {"lr": 1.0e-3, "betas": [0.9, 0.95], "torch_adam": True},
        },
        "scheduler": {
            "type": "WarmupDecayLR",
            "params": {"warmup_num_steps": 10, "total_num_steps": "${config.total_steps}"},
        },
    },
    # Warm ranks are measured apart, as supervisor and agents are: see Bench.beside.
    "recovery": {"warm_after": None},
    "resources": {"nodes": NODES, "ntasks_per_node": 1, "cpus_per_task": 1, "time": "00:20:00"},
}

# The engines, and the ZeRO stage that a DeepSpeed configuration has for them.
ENGINES = {"deepspeed": 1, "fully_shard": 3, "replicas": 0}


def spec_of(engine: str) -> dict[str, Any]:
    """Return SPEC for an engine: those without DeepSpeed know no schedule of DeepSpeed's."""
    if engine == "deepspeed":
        return SPEC
    deepspeed = {key: value for key, value in SPEC["deepspeed"].items() if key != "scheduler"}
    schedule = {"warmup": "${config.warmup}", "total_steps": "${config.total_steps}"}
    return {
        **SPEC,
        "config": {**SPEC["config"], "engine": engine, "warmup": 10},
        "deepspeed": {**deepspeed, "zero_optimization": {"stage": ENGINES[engine]}},
        "optimization": {**schedule, "decay": "linear"},
    }


# What the programs of `jobs` want beside or instead of what language_model has; a step of each
# takes about as long.
TRANSFORMER = {"layers": 4, "width": 256, "heads": 4}
LOADED = {"evaluate_every": 1_000_000, "num_workers": 0}
PROGRAMS: dict[str, dict[str, Any]] = {
    "language_model": {},
    "causal_language_model": {"model": TRANSFORMER, "context": 128, "tokenizer": None},
    "masked_language_model": {
        **LOADED,
        "evaluate_windows": 16,
        "label_smoothing": 0.1,
        "model": {**MODEL, "dropout": 0.1, "deviation": 0.02},
    },
    "image_classification": {
        **LOADED,
        "label_smoothing": 0.1,
        "model": {"width": 112, "dropout": 0.1, "initialization": "he"},
    },
}
BATCHES = {"image_classification": 32}
# These draw masks or shifts, and the bare script's data are torch's own, in another order: their
# losses may differ by so much in the mean of the measured steps.
DRAWN = {"masked_language_model", "image_classification"}
LIKE = 0.05

BARE = """#!/bin/bash
#SBATCH --job-name=bare --nodes=2 --ntasks-per-node=1 --cpus-per-task=1 --mem=6000
#SBATCH --time=00:20:00 --output=bare.log
export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1) MASTER_PORT=29500
export GLOO_SOCKET_IFNAME=ib0 OMP_NUM_THREADS=1 DS_ACCELERATOR=cpu
{keeps}
exec srun --cpus-per-task=1 {python} training_bare.py \\
    --config config.json --deepspeed-config deepspeed.json --log bare-loss.log --loss {loss}
"""


# Has glibc keep what it is given back, so that the kernel gives each page once: else, where a few
# bytes of gloo's works lie decides whether the buffers that DeepSpeed frees at a step are trimmed.
KEEPS = "glibc.malloc.mmap_threshold=2147483648:glibc.malloc.trim_threshold=4294967296"


class Bench:
    """The desk on which both sides lie.

    Parameters
    ----------
    options
        The command line's.
    socket
        The referee's, on a local disk: through shared storage nobody hears it.
    version, checkout
        Of hpcrun (`bench.against`).
    """

    def __init__(
        self,
        cluster: Cluster,
        options: argparse.Namespace,
        socket: Path,
        version: str,
        checkout: Path | None,
    ) -> None:
        self.cluster, self.options, self.version = cluster, options, version
        self.desk = Workbench(cluster, version)
        against.use(self.desk, checkout)
        self.socket = socket
        self.desk.copy_job(f"{options.program}.py")
        for name in ("turns.py", "training_hpcrun.py", "training_bare.py"):
            self.desk.write(name, (HERE / name).read_text())
        blocks = range(options.warm_up + 1, options.warm_up + options.steps + 2, options.block)
        self.pauses = [1, *blocks]
        # After the last measured step comes one more, whose beginning is that step's end.
        whole = spec_of(options.engine)
        config = {
            **whole["config"],
            **PROGRAMS[options.program],
            "program": options.program,
            "total_steps": options.warm_up + options.steps + 1,
            "turns": str(self.socket),
            "side": "hpcrun",
        }
        batch = BATCHES.get(options.program, SPEC["deepspeed"]["train_batch_size"])
        sizes = {"train_batch_size": batch, "train_micro_batch_size_per_gpu": batch // NODES}
        spec = {**whole, "config": config, "deepspeed": {**whole["deepspeed"], **sizes}}
        if not options.give_back:
            spec["environment"] = {"variables": {"GLIBC_TUNABLES": KEEPS}}
        self.spec = self.desk.spec(f"training-{version}", spec)
        warm = {**spec, "recovery": {"warm_after": "00:00:01"}}
        self.warm = self.desk.spec(f"beside-{version}", warm)
        plan = json.loads(self.desk.hpcrun("plan", self.spec, "--json").stdout)
        self.deepspeed: dict[str, Any] = plan["runs"][0]["spec"]["deepspeed"]
        self.desk.write("deepspeed.json", json.dumps(self.deepspeed))
        self.desk.write("config.json", json.dumps(config))
        keeps = "" if options.give_back else f"export GLIBC_TUNABLES={KEEPS}"
        bare = BARE.format(python=cluster.python, loss=options.peer, keeps=keeps)
        self.desk.write("bare.sh", bare)

    def pair(self, first: int) -> report.Pair:
        """Both sides from their start to their end; side number ``first`` has the first turn."""
        load = os.getloadavg()[0]
        turns = [SIDES[(first + turn + place) % 2] for turn in range(20_000) for place in (0, 1)]
        with Referee(self.socket, SIDES, NODES) as referee:
            submitted = self.desk.hpcrun("submit", self.spec, "--new", "--json")
            run = json.loads(submitted.stdout)["runs"][0]["run"]
            job = self.cluster.run(
                ["sbatch", "--parsable", "bare.sh"], cwd=str(self.desk.directory)
            ).stdout.strip()
            try:
                referee.welcome(self.pauses)
                for side in turns[: 2 * (len(self.pauses) - 1)]:
                    referee.turn(side)
                results = referee.end()
            except (OSError, ValueError) as error:
                bare = (self.desk.directory / "bare.log").read_text()
                raise RuntimeError(
                    f"a side did not come to its end: {error}\n"
                    f"{self.desk.explain(f'{self.spec.stem}/{run}')}\n{bare}"
                ) from error
        self.cluster.wait_job(job, "COMPLETED")
        attempt = self.desk.root / self.spec.stem / "runs" / str(run) / "attempts" / "1"
        self._finished(attempt / "session.jsonl")
        self._same_work(referee, results, attempt)
        steps = slice(self.options.warm_up, self.options.warm_up + self.options.steps)
        processor = {
            side: sum(sum(rank["processor"][steps]) for rank in results[side]) for side in SIDES
        }
        own = results["hpcrun"][0]["own"]
        return report.Pair(
            first=SIDES[first],
            load=load,
            block=self.options.block,
            hpcrun=results["hpcrun"][0]["seconds"][steps],
            bare=results["bare"][0]["seconds"][steps],
            own_seconds=own[steps.stop] - own[steps.start],
            step_seconds=sum(results["hpcrun"][0]["seconds"][steps]),
            processor=100 * (processor["hpcrun"] / processor["bare"] - 1),
            faults={side: fmean(results[side][0]["faults"][steps]) for side in SIDES},
        )

    def _finished(self, path: Path) -> None:
        """Wait for the session's last word, which comes after the final checkpoint."""
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            events = [json.loads(line) for line in path.read_text().splitlines()]
            if events and events[-1]["event"] == "finished":
                return
            time.sleep(0.2)
        raise RuntimeError(f"hpcrun's run did not finish: {path}")

    def _same_work(self, referee: Referee, results: dict[str, list[Any]], attempt: Path) -> None:
        """Both sides ran on the same nodes and computed the same, to the last bit if not DRAWN."""
        if referee.nodes["hpcrun"] != referee.nodes["bare"]:
            raise RuntimeError(f"not on the same nodes: {referee.nodes}")
        losses = {side: [rank["losses"] for rank in results[side]] for side in SIDES}
        total = self.options.warm_up + self.options.steps + 1
        if self.options.program in DRAWN:
            means = {side: fmean(chain(*losses[side])) for side in SIDES}
            same = abs(means["hpcrun"] / means["bare"] - 1) < LIKE
        else:
            same = losses["hpcrun"] == losses["bare"]
        if not same or {len(rank) for side in SIDES for rank in losses[side]} != {total}:
            raise RuntimeError(f"the two sides did not do the same work: {losses}")
        used = json.loads((attempt / "deepspeed.json").read_text())
        if used != self.deepspeed:
            raise RuntimeError("the two sides had different DeepSpeed configurations")
        logs = attempt / "metrics.jsonl", self.desk.directory / "bare-loss.log"
        if any(len(path.read_text().splitlines()) != total for path in logs):
            raise RuntimeError("a side did not log every step")

    def beside(self) -> dict[str, float]:
        """What supervisor, agents and warm ranks use of a processor, in a run of their own."""
        options = self.options
        pauses = [1, options.warm_up + 1, options.warm_up + options.steps + 1]
        with Referee(self.socket, SIDES[:1], NODES) as referee:
            submitted = self.desk.hpcrun("submit", self.warm, "--new", "--json")
            run = json.loads(submitted.stdout)["runs"][0]["run"]
            referee.welcome(pauses)
            referee.turn("hpcrun")
            began, before = time.monotonic(), self._used()
            referee.turn("hpcrun")
            after, seconds = self._used(), time.monotonic() - began
            referee.end()
        attempt = self.desk.root / self.warm.stem / "runs" / str(run) / "attempts" / "1"
        self._finished(attempt / "session.jsonl")
        return {
            "seconds": seconds,
            **{
                f"{name}_percent": 100 * (after[name] - before[name]) / seconds
                for name in ("supervisor", "agents")
            },
            "warm_seconds": after["warm"],
        }

    def _used(self) -> dict[str, float]:
        """Processor seconds so far of this bed's supervisor, agents and warm ranks."""
        ticks = dict.fromkeys(_BESIDE, 0)
        for process in Path("/proc").glob("[0-9]*"):
            try:
                command = (process / "cmdline").read_bytes().decode(errors="replace")
                fields = (process / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if str(self.cluster.root) not in command or "srun" in command.partition("\0")[0]:
                continue
            for name, word in _BESIDE.items():
                ticks[name] += (int(fields[11]) + int(fields[12])) * (word in command)
        return {name: count / os.sysconf("SC_CLK_TCK") for name, count in ticks.items()}


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engine", choices=list(ENGINES), default="deepspeed")
    parser.add_argument("--program", choices=sorted(PROGRAMS), default="language_model")
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--steps", type=int, default=100, help="measured steps a side and pair")
    parser.add_argument("--warm-up", type=int, default=10, help="steps before them")
    parser.add_argument("--block", type=int, default=2, help="steps of a turn")
    parser.add_argument("--peer", choices=["rank0", "average"], default="rank0")
    parser.add_argument("--slurm", choices=["22.05", "24.11"], default="22.05")
    parser.add_argument(
        "--give-back", action="store_true", help="glibc of both sides trims what is freed, as usual"
    )
    against.add_option(parser)
    add_options(parser, "training")
    options = parser.parse_args()
    if options.steps % options.block:
        parser.error(f"--steps {options.steps} is no multiple of --block {options.block}")
    if options.pairs < 1:
        parser.error("--pairs must be at least 1")
    if options.engine != "deepspeed" and options.program != "language_model":
        parser.error(
            f"--engine {options.engine} trains language_model alone, not --program "
            f"{options.program}: leave one of them out"
        )
    return options


def main() -> None:
    """Measure, print, and write the results where ``--output`` says."""
    options = parse()
    began = time.monotonic()
    with (
        against.versions(options.against) as found,
        against.open_directory("hpcrun-turns-") as turns,
        Cluster(options.slurm, NODES, visible=(*against.visible(found), str(turns))) as cluster,
    ):
        socket = turns / "socket"
        benches = [Bench(cluster, options, socket, *version) for version in found.items()]
        pairs: dict[str, list[report.Pair]] = {version: [] for version in found}
        for number in range(options.pairs + 1):
            for bench in benches:
                pair = bench.pair(number % 2)
                kind = f"pair {number} of {options.pairs}" if number else "rehearsal, not counted"
                print(
                    f"{bench.version}, {kind}: {pair.slowdown:+.2f} %, own {pair.own:.3f} %,"
                    f" processor {pair.processor:+.2f} %, {time.monotonic() - began:.0f} s",
                    file=sys.stderr,
                    flush=True,
                )
                if number:
                    pairs[bench.version].append(pair)
        beside = {bench.version: bench.beside() for bench in benches}
    setting = circumstances(
        seconds=round(time.monotonic() - began),
        python=platform.python_version(),
        slurm=options.slurm,
        nodes=NODES,
        ranks_per_node=1,
        engine=options.engine,
        program=options.program,
        model={**SPEC["config"], **PROGRAMS[options.program]}["model"],
        pairs=options.pairs,
        warm_up=options.warm_up,
        steps=options.steps,
        block=options.block,
        peer=options.peer,
        give_back=options.give_back,
    )
    ours = {options.engine: "deepspeed", options.program: "language_model"}
    others = [given for given, usual in ours.items() if given != usual]
    name = "-".join(["training", *others, *["give_back"] * options.give_back])
    lines: list[str] = []
    results: dict[str, dict[str, Any]] = {}
    for version in found:
        said = pairs[version], options.program, beside[version]
        lines += [f"hpcrun of {version}", *report.lines(*said), ""]
        results[version] = report.summary(*said)
    publish(options, name, setting, lines[:-1], **results.pop(against.NOW), **results)


if __name__ == "__main__":
    main()

"""Counts what a step of our training loop does more than a bare script's: no clock disturbs that.

    python -m bench.training_counts [--engine NAME] [--output bench/results] [--json]

The two sides of `bench.training`, unchanged, on two ranks of this machine (gloo): operators, bytes
copied and made, collectives and their bytes, numbers that are read, in rank 0. See bench/README.md.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from bench.publish import add_options, circumstances, publish
from bench.step_counts import STEPS, TOTAL, WHAT
from bench.training import ENGINES, MODEL, spec_of
from hpcrun.run.node import op_cache
from hpcrun.run.node.rendezvous_port import PortReservation
from tests.support import operators

HERE = Path(__file__).parent
RANKS, MICRO_BATCHES = 2, 2
_COPIED = (
    *(HERE.parent / "jobs/language_model.py", HERE / "training_hpcrun.py"),
    HERE / "training_bare.py",
)


def count(
    engine: str,
    directory: Path,
    model: Mapping[str, Any] = MODEL,
    start: Callable[..., Any] = subprocess.Popen,
) -> dict[str, Any]:
    """Return what rank 0 of both sides did in `STEPS` steps; they end with the same losses.

    Parameters
    ----------
    engine
        One of `ENGINES`.
    directory
        Empty; all files are below it.
    model
        The arguments of the language model.
    start
        Starts the bare script's ranks, as `subprocess.Popen` does.
    """
    code, root, extensions = (directory / name for name in ("code", "root", "extensions"))
    code.mkdir()
    for path in _COPIED:
        shutil.copy(path, code)
    shutil.copy(HERE / "step_counts.py", code / "turns.py")
    cache = operators.build()
    operators.link(cache, root)
    op_cache.copy(cache, operators.key(), extensions)
    spec = spec_of(engine)
    config = {
        **spec["config"],
        **{"model": dict(model), "total_steps": TOTAL, "turns": str(directory), "side": "hpcrun"},
    }
    micro = spec["deepspeed"]["train_micro_batch_size_per_gpu"]
    spec = {
        **spec,
        "name": "counted",
        "cluster": "local",
        "config": config,
        "deepspeed": {**spec["deepspeed"], "train_batch_size": MICRO_BATCHES * micro * RANKS},
        "resources": {"nodes": 1, "ntasks_per_node": RANKS, "cpus_per_task": 1},
        # Of the first step alone: when the next comes, a clock decides.
        "recovery": {"warm_after": None, "check_replicas": 10 * TOTAL},
        "checkpoint": {"every": None},
    }
    (code / "counted.yaml").write_text(yaml.safe_dump(spec))
    said = _hpcrun(code, root, "plan", "counted.yaml", "--json")
    settings = json.loads(said)["runs"][0]["spec"]["deepspeed"]
    (code / "deepspeed.json").write_text(json.dumps(settings))
    (code / "config.json").write_text(json.dumps(config))
    _hpcrun(code, root, "run", "counted.yaml", "--new", "--quiet")
    _bare(code, extensions, start)
    found = {
        side: [json.loads((directory / f"{side}-{rank}.json").read_text()) for rank in range(RANKS)]
        for side in ("hpcrun", "bare")
    }
    losses = {side: [one["losses"] for one in ranks] for side, ranks in found.items()}
    if losses["hpcrun"] != losses["bare"] or {len(one) for one in losses["bare"]} != {TOTAL}:
        raise RuntimeError(f"the two sides did not do the same work: {losses}")
    return {side: {key: ranks[0][key] for key in ("counts", "names")}
            for side, ranks in found.items()}  # fmt: skip


def _environment(**more: str) -> dict[str, str]:
    paths = [str(HERE.parent), os.environ.get("PYTHONPATH", "")]
    path = os.pathsep.join(filter(None, paths))
    return {**os.environ, "PATH": operators.PATH, "PYTHONPATH": path, **more}


def _hpcrun(code: Path, root: Path, *words: str) -> str:
    """Run a command of hpcrun, and return what it printed."""
    argv = [sys.executable, "-m", "hpcrun", *words, "--root", str(root)]
    done = subprocess.run(
        argv, cwd=code, env=_environment(), capture_output=True, text=True, check=False
    )
    if done.returncode:
        logs = "".join(path.read_text()[-2000:] for path in root.glob("*/runs/*/attempts/*/*.log"))
        raise RuntimeError(f"hpcrun {words[0]}: {done.stderr}\n{logs}")
    return done.stdout


def _bare(code: Path, extensions: Path, start: Callable[..., Any]) -> None:
    """Run the bare script's ranks, as srun would."""
    port = PortReservation(os.getpid())
    environment = _environment(
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port.port),
        SLURM_NTASKS=str(RANKS),
        OMP_NUM_THREADS="1",
        DS_ACCELERATOR="cpu",
        GLOO_SOCKET_IFNAME="lo",
        TORCH_EXTENSIONS_DIR=str(extensions),
    )
    argv = [sys.executable, "training_bare.py", "--config", "config.json"]
    argv += ["--deepspeed-config", "deepspeed.json", "--log", "bare-loss.log"]
    port.release()
    ranks = []
    for rank in range(RANKS):
        own = {**environment, "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)}
        with open(code / f"bare-{rank}.log", "wb") as log:
            ranks.append(start(argv, cwd=code, env=own, stdout=log, stderr=log))
    try:
        ended = [one.wait(300) for one in ranks]
    finally:
        for one in ranks:
            one.kill()
            one.wait()
    if any(ended):
        said = "".join((code / f"bare-{rank}.log").read_text()[-2000:] for rank in range(RANKS))
        raise RuntimeError(f"the bare script ended with {ended}:\n{said}")


def more(found: Mapping[str, Any], key: str) -> dict[str, int]:
    """Return by how much ours and the bare script's differ in ``counts`` or ``names``."""
    ours, bare = (Counter(found[side][key]) for side in ("hpcrun", "bare"))
    return {name: ours[name] - bare[name] for name in {**ours, **bare} if ours[name] != bare[name]}


def lines(found: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield the table, and the operators of which one side has more."""
    yield "  ".join([f"{'a step, ours / bare':<20}", *(f"{engine:>31}" for engine in found)])
    for what in WHAT:
        shown = (
            " / ".join(f"{sides[side]['counts'].get(what, 0) / STEPS:,.10g}" for side in sides)
            for sides in found.values()
        )
        yield "  ".join([f"{what:<20}", *(f"{one:>31}" for one in shown)])
    yield ""
    for engine, sides in found.items():
        apart = sorted(more(sides, "names").items(), key=lambda one: -one[1])
        told = ", ".join(f"{number / STEPS:+g} {name}" for name, number in apart)
        yield f"{engine}: {told or 'the same operators'}"


def main() -> None:
    """Count, print, and write the results where ``--output`` says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engine", choices=list(ENGINES), help="one alone")
    add_options(parser, "training_counts")
    options = parser.parse_args()
    found = {}
    for engine in [options.engine] if options.engine else ENGINES:
        with tempfile.TemporaryDirectory(prefix="hpcrun-counts-") as directory:
            found[engine] = count(engine, Path(directory))
    setting = circumstances(ranks=RANKS, micro_batches=MICRO_BATCHES, steps=STEPS, model=MODEL)
    publish(options, "training_counts", setting, [*lines(found)], engines=found)


if __name__ == "__main__":
    main()

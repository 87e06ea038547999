"""A run that is killed three times and goes on with other ranks reads what an unhurt one reads.

One loader has examples with augmentations, another a mixture of token files.
"""

from __future__ import annotations

import collections
import json
import random
from pathlib import Path
from typing import Any

import pytest

from hpcrun.run.data.mixture import Mixture
from hpcrun.run.data.sample_loader import NumberedDataset, SampleRequest
from hpcrun.run.data.sample_order import examples_of
from hpcrun.run.rank import rng
from hpcrun.state import ledger
from hpcrun.state.plan import Entry
from tests.support.place import Place

numpy = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")

# Steps of 8 samples, epochs of 50: none ends with a batch.
STEPS, BATCH, EXAMPLES, SEED = 26, 8, 50, 4
EVERY = 4
WIDTH = 3
# Ranks and workers of each attempt, and the step in the middle of which rank 1 is killed.
ATTEMPTS = ((2, 2, 6), (2, 4, 11), (4, 0, 17), (4, 2, None))

# Files of windows, and their weights.
TOKEN_PARTS = {"web": (37, 0.7), "code": (11, 0.3)}
PROGRAM = """
import json, os, random, signal
import hpcrun, torch
from tests.support.place import FakeEngine

class Examples:
    def __len__(self):
        return EXAMPLES
    def __getitem__(self, index):
        return torch.tensor([index, random.random(), torch.rand(()).item()], dtype=torch.float64)

class Engine(FakeEngine):
    def zero_optimization_stage(self):
        return 0  # what is saved is the same for all ranks

def train(session):
    torch.distributed.init_process_group("gloo")
    engine = Engine()
    session.restore(engine)
    config = session.config
    loader = session.loader(Examples(), num_workers=config.workers)
    mixture = session.loader(hpcrun.Mixture(TOKEN_PARTS), num_workers=config.workers)
    with open(session.directory / f"read-{session.attempt}-{session.rank}", "w") as stream:
        for step in session.steps(total=STEPS):
            last = 4 // session.world_size - 1
            for number, both in enumerate(zip(loader(step), mixture(step), strict=True)):
                found = [*zip(*[batch.tolist() for batch in both], strict=True)]
                print(json.dumps([step, found]), file=stream, flush=True)
                if session.rank == 1 and number == last and step == config.killed:
                    os.kill(os.getpid(), signal.SIGKILL)
            engine.step()
"""


def _submit(place: Place, ranks: int, workers: int, killed: int | None) -> None:
    parts = []
    for name, (_, weight) in TOKEN_PARTS.items():
        path = place.code / f"{name}.npy"
        numpy.save(path, numpy.array(_tokens(name), "uint16"))
        files = f"hpcrun.TokenFiles({str(path)!r})"
        parts.append(f"{name!r}: (hpcrun.PackedDocuments({files}, {WIDTH}), {weight})")
    text = PROGRAM.replace("TOKEN_PARTS", "{" + ", ".join(parts) + "}")
    text = text.replace("EXAMPLES", str(EXAMPLES)).replace("STEPS", str(STEPS))
    (place.code / "reading.py").write_text(text)
    place.submit(
        Entry("function", module="reading", function="train", import_root="."),
        ranks=ranks,
        config={"seed": SEED, "workers": workers, "killed": killed},
        deepspeed={
            "train_batch_size": BATCH,
            "train_micro_batch_size_per_gpu": 2,
            "gradient_accumulation_steps": BATCH // 2 // ranks,
        },
        # With a GPU asked for, none of DeepSpeed's operators needs compiling.
        resources={"nodes": 1, "ntasks_per_node": ranks, "gpus_per_node": ranks},
        checkpoint={"every": EVERY, "keep": 1},
    )


def _global_batches(run: Path, attempt: int) -> dict[int, list[Any]]:
    """Step -> the examples of its global batch, in order, with what was drawn for each.

    A step in which the ranks were ended has fewer.
    """
    found: dict[int, list[Any]] = collections.defaultdict(list)
    for path in sorted(run.glob(f"read-{attempt}-*")):
        for step, batch in _lines(path):
            found[step] += batch
    return found


def _lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines() if line.endswith("]")]


def _tokens(name: str) -> list[int]:
    """Return the tokens of a file, which tell its name and their place."""
    return [ord(name[0]) * 256 + place for place in range(TOKEN_PARTS[name][0] * WIDTH)]


def _windows(name: str) -> list[list[int]]:
    tokens = _tokens(name)
    return [tokens[at : at + WIDTH] for at in range(0, len(tokens), WIDTH)]


class _Examples:
    def __getitem__(self, index: int) -> list[float]:
        return [float(index), random.random(), torch.rand((), dtype=torch.float32).item()]


@pytest.mark.timeout(600)
def test_three_kills(place: Place) -> None:
    numbered = NumberedDataset(_Examples(), SEED)
    mixture = Mixture(
        {name: (_windows(name), weight) for name, (_, weight) in TOKEN_PARTS.items()}, seed=SEED
    )
    with rng.host_kept():
        unhurt = {
            step + 1: [
                [numbered[SampleRequest(s, examples_of([s], EXAMPLES, SEED)[0])], mixture[s]]
                for s in range(step * BATCH, (step + 1) * BATCH)
            ]
            for step in range(STEPS)
        }
    done: dict[int, list[Any]] = {}
    for attempt, (ranks, workers, killed) in enumerate(ATTEMPTS, start=1):
        _submit(place, ranks, workers, killed)
        code, said = place.supervise(timeout=150)
        assert code == (0 if killed is None else 1), said + place.output(attempt=attempt)
        if killed is not None:
            assert place.cause(attempt)["kind"] == "rank_crash"
            ledger.set_intent(place.run, None)
        found = _global_batches(place.run.directory, attempt)
        # It begins after the newest checkpoint, within an epoch, and reads nothing before that.
        before = ATTEMPTS[attempt - 2][2] if attempt > 1 else 1
        first = (before - 1) // EVERY * EVERY + 1
        end = killed or STEPS + 1
        whole = {step: batch for step, batch in found.items() if step < end}
        assert whole == {step: unhurt[step] for step in range(first, end)}
        done.update(whole)
    assert done == unhurt
    # 208 samples: of each part what its weight says, the shorter one in several epochs.
    drawn = collections.Counter(window[0] // 256 for batch in done.values() for _, window in batch)
    assert drawn == {ord("w"): 145, ord("c"): 63}
    assert "epochs of the mixture's parts in 26 steps: web 3.92, code 5.73" in place.output()

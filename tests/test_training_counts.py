"""What a step through the session does more than a bare script's, engine by engine."""

from __future__ import annotations

from pathlib import Path
from typing import IO

import pytest

from bench import training_counts
from bench.step_counts import STEPS
from bench.training import ENGINES
from tests.support.nursery import Child, nursery

TINY = {"layers": 2, "width": 32, "heads": 2, "context": 16}
# In all counted steps, whatever the model: the loss goes through an all-reduce of its own, with
# room for more, a mark of its names, the votes on a stop and rank 0's word, 280 bytes; the norm of
# the gradients is read, and the program reads a loss at each tenth step.
MORE = {"gloo.allreduce": STEPS, "aten.lift_fresh": STEPS, "aten._local_scalar_dense": STEPS + 1}
BYTES = 280 * STEPS
# The norm, of which ranks hold parts, is made whole to be told. And as the first micro batch is not
# the last of its step, FSDP2 marks once more that it would gather the root ahead.
SHARDED = {
    "aten.view": STEPS,
    "profiler._record_function_enter_new": STEPS,
    "profiler._record_function_exit": STEPS,
}


@pytest.mark.training
@pytest.mark.parametrize("engine", ENGINES)
def test_no_more_is_done_than_is_known(warm_operators: Path, tmp_path: Path, engine: str) -> None:
    """The losses of both are the same to the bit, or nothing is counted."""
    found = training_counts.count(engine, tmp_path, TINY, _forked)
    known = MORE | (SHARDED if engine == "fully_shard" else {})
    names = training_counts.more(found, "names")
    assert {name: more for name, more in names.items() if more > known.get(name, 0)} == {}
    counts = training_counts.more(found, "counts")
    assert counts.pop("bytes in them") <= BYTES
    assert counts.pop("collectives") <= STEPS
    assert not {what for what in counts if what.startswith("bytes") and counts[what] > 0}
    # Both were counted, with their reductions of gradients.
    assert min(found[side]["counts"]["collectives"] for side in found) >= STEPS


def _forked(
    argv: list[str], *, cwd: Path, env: dict[str, str], stdout: IO[bytes], stderr: IO[bytes]
) -> Child:
    """Start a script, ``python SCRIPT …``, in a process that has imported torch."""
    code = (
        "import runpy, sys; sys.path.insert(0, '.'); del sys.argv[0]; "
        "runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    return nursery().start(["-c", code, *argv[1:]], env=env, output=stdout.fileno(), cwd=cwd)

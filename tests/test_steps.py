"""Functions that `status` and `submit` of one run call, and the way of a spec to sbatch."""

from __future__ import annotations

from pathlib import Path

from bench import steps

# The targets are those of `bench.steps`; only ever lowered, but for what features look up of other
# experiments (one function), and for runs that share a job, in which `status` looks at how they
# ended there (one) and `submit` checks what may be (two). And `status` asks from whom a run of a
# population began (one), and `submit` has the lock of a journal (three), and a walk over hpcrun's
# own modules that no other process's caches break (one).
_MOST = {"status": 187, "submit": 527, "modules": 25, "returns": 34}


def test_no_more_is_called_than_was() -> None:
    found = steps.measure(Path(__file__).parent.parent)
    assert {what: found[what] for what in _MOST if found[what] > _MOST[what]} == {}

"""How far a search is: its trials by what became of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from hpcrun.observe.read.selection import Selected
from hpcrun.observe.status import run_state
from hpcrun.observe.status.status import RunStatus, best_value
from hpcrun.observe.tables import number as shown
from hpcrun.state.plan import SEARCH
from hpcrun.text import plural

# What a trial counts as -> the states of its run; all others are left.
_COUNTS_AS = {
    run_state.COMPLETED: (run_state.COMPLETED,),
    run_state.PRUNED: (run_state.PRUNED,),
    run_state.RUNNING: (run_state.RUNNING, run_state.RESTARTING, run_state.REQUEUED),
    run_state.FAILED: (run_state.FAILED,),
    run_state.CANCELLED: (run_state.CANCELLED,),
}


def counts(states: Iterable[str]) -> dict[str, int]:
    """Return the number of trials by what became of them, and how many are ``left``."""
    number = Counter(states)
    found = {name: sum(number[one] for one in those) for name, those in _COUNTS_AS.items()}
    return {**found, "left": number.total() - sum(found.values())}


def summary(each: Sequence[tuple[Selected, RunStatus]]) -> str:
    """Return in one line how far the runs of a search are, and the best of their last values."""
    found = f"search of {sentence(status.state for _, status in each)}"
    rule = each[-1][0].run.spec[SEARCH].get("prune", "none")
    if rule != "none" and any(one.step and not one.total_steps for _, one in each):
        found += f"; prune: {rule} ends no run of which nothing says the total (progress.total)"
    if (best := best_value(each)) is None:
        return found
    label = next(one.run.label for one, _ in each if one.run.number == best["run"])
    value = f"{best['metric']} {shown(best['value'])}"
    return f"{found}; best last value: {value}, run {best['run']}, {label}"


def sentence(states: Iterable[str]) -> str:
    """Return ``40 trials: 22 completed, 9 pruned, 6 running, 3 left``."""
    found = counts(states)
    parts = ", ".join(f"{number} {name}" for name, number in found.items() if number)
    return f"{plural(sum(found.values()), 'trial')}: {parts}"

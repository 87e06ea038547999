"""Filter of runs by conditions on values, states and metrics: ``--where 'lr=3e-4'``."""

from __future__ import annotations

import json
import math
import operator
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from difflib import get_close_matches
from typing import Any, Generic, Protocol, TypeVar

from hpcrun import bounded_json
from hpcrun.errors import UsageError
from hpcrun.observe.read import expression as grammar
from hpcrun.observe.read.expression import Combination, Comparison, Expression
from hpcrun.state.plan import RunPlan
from hpcrun.text import Say, agreeing, listed, plural, shortened

MISSING = object()
# What is known of a run beside its values, as keys: `run.state`, in short `state`.
STATE, CAUSE, ATTEMPTS, STEP = FACTS = ("run.state", "run.cause", "run.attempts", "run.step")
METRIC = "metric."
_ORDER: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


class Candidate(Protocol):
    """A run; runs of one plan have the same object as ``planned``."""

    @property
    def name(self) -> str: ...

    @property
    def run(self) -> RunPlan: ...

    @property
    def planned(self) -> object: ...


class Facts(Protocol):
    """The state and progress of a run, such as a `hpcrun.observe.status.status.RunStatus`."""

    @property
    def state(self) -> str: ...

    @property
    def last_cause(self) -> str | None: ...

    @property
    def attempt(self) -> int | None: ...

    @property
    def step(self) -> int | None: ...

    @property
    def metrics(self) -> dict[str, float] | None: ...


Narrowed = TypeVar("Narrowed", bound=Candidate)
# Returns the facts of runs, in their order; with steps and metrics if the flag is set.
Look = Callable[[Sequence[Narrowed], bool], Sequence[Facts]]


def narrow(
    selected: Sequence[Narrowed],
    conditions: Sequence[str],
    option: str = "--where",
    look: Look[Narrowed] | None = None,
    say: Say = lambda message: None,
) -> list[Narrowed]:
    """Return the runs that meet every condition; error messages name the ``option``.

    A condition compares (see `hpcrun.observe.read.expression`) keys with values. A key is full and
    dotted, or a suffix that is unique among the swept keys and `FACTS` or, if it matches none of
    these, among all configured ones; ``metric.NAME`` is the last value of a metric. Numbers compare
    as numbers; ``a=1,2`` is either. What a run has no value of is met by ``!=`` and ``not`` alone.
    ``look`` is asked for facts only where a condition needs them, and only of the runs that meet
    all others; ``say`` tells of runs without a metric. Raises UsageError if a condition has another
    form, its key is unknown or ambiguous, or no run meets all of them.
    """
    if not conditions:
        return list(selected)
    parsed = [grammar.parse(condition, option) for condition in conditions]
    parts = [part for one in parsed for part in _conjuncts(one)]
    filtering = _Filtering(selected, option, look, say)
    keys = {each.key for part in parts for each in grammar.comparisons(part)}
    filtering.keys = {key: filtering.resolve(key) for key in sorted(keys)}
    left = list(selected)
    for part in sorted(parts, key=filtering.needs_facts):
        before, left = left, filtering.meeting(left, part)
        if not left:
            raise filtering.nothing(part, before)
    return left


def needs_facts(conditions: Sequence[str]) -> bool:
    """Check whether conditions may change by themselves: they are about more than values."""
    found = (each.key for one in conditions for each in grammar.comparisons(grammar.parse(one)))
    return any(key.startswith(METRIC) or _fact(key) for key in found)


def _conjuncts(expression: Expression) -> tuple[Expression, ...]:
    if isinstance(expression, Combination) and expression.word == "and":
        return expression.parts
    return (expression,)


def _fact(key: str) -> bool:
    return any(key in (fact, _short(fact)) for fact in FACTS)


class _Filtering(Generic[Narrowed]):
    """One call of `narrow`."""

    def __init__(
        self, selected: Sequence[Narrowed], option: str, look: Look[Narrowed] | None, say: Say
    ) -> None:
        self.selected, self.option, self._look, self._say = selected, option, look, say
        self.keys: dict[str, str] = {}
        # By the identity of the run: names of two roots may be the same.
        self._facts: dict[int, Facts] = {}

    def resolve(self, key: str) -> str:
        """Return the full key, or ``metric.NAME``."""
        if key.startswith(METRIC) and len(key) > len(METRIC):
            return key
        return resolve_key(self.selected, key, FACTS)

    def needs_facts(self, expression: Expression) -> bool:
        keys = {self.keys[each.key] for each in grammar.comparisons(expression)}
        return any(key in FACTS or key.startswith(METRIC) for key in keys)

    def meeting(self, runs: Sequence[Narrowed], expression: Expression) -> list[Narrowed]:
        """Return the runs that meet an expression."""
        compared = list(grammar.comparisons(expression))
        if self.needs_facts(expression):
            self._read(runs, {self.keys[each.key] for each in compared})
        tests = {each: self._test(each, runs) for each in compared}

        def meets(one: Narrowed, part: Expression) -> bool:
            if isinstance(part, Comparison):
                return tests[part](one)
            if part.word == "not":
                return not meets(one, part.parts[0])
            return (all if part.word == "and" else any)(meets(one, each) for each in part.parts)

        return [one for one in runs if meets(one, expression)]

    def _read(self, runs: Sequence[Narrowed], keys: Collection[str]) -> None:
        """Read the facts of runs that are not known yet."""
        if self._look is None:
            raise UsageError(f"{self.option}: states and metrics are not known here")
        values = any(key == STEP or key.startswith(METRIC) for key in self.keys.values())
        new = [one for one in runs if id(one) not in self._facts]
        found = self._look(new, values) if new else []
        self._facts.update((id(one), facts) for one, facts in zip(new, found, strict=True))
        for key in sorted(keys):
            if key.startswith(METRIC):
                self._tell_of_missing(key, runs)

    def _tell_of_missing(self, key: str, runs: Sequence[Narrowed]) -> None:
        """Tell which runs have no value of a metric; raise UsageError if none has one."""
        names = sorted({name for one in runs for name in self._facts[id(one)].metrics or {}})
        wanted = key.removeprefix(METRIC)
        if wanted not in names:
            there = listed(names, 12, rest=", …")
            close = get_close_matches(wanted, names, n=3, cutoff=0.6)
            raise UsageError(
                f"{self.option}: no run has logged a metric {shortened(wanted, 200)!r}",
                hint=(f"did you mean {', '.join(close)}? " if close else "")
                + (f"logged are {there}" if there else "no metric was logged yet"),
            )
        without = [one.name for one in runs if not list(self._values(one, key))]
        if without:
            has = agreeing(len(without), "has", "have")
            self._say(
                f"{plural(len(without), 'run')} {has} no {wanted} yet, and so "
                f"{agreeing(len(without), 'is', 'are')} neither less nor greater: "
                f"{listed(without, 6)}"
            )

    def _test(self, each: Comparison, runs: Sequence[Narrowed]) -> Callable[[Narrowed], bool]:
        key = self.keys[each.key]
        if each.sign in _ORDER:
            compare, bound = _ORDER[each.sign], self._number(each, runs)
            return lambda one: any(
                _is_number(value) and compare(value, bound) for value in self._values(one, key)
            )
        wanted = [each.text, *(each.text.split(",") if "," in each.text else ())]
        if key in (STATE, CAUSE):
            self._check_words(key, wanted[1:] or wanted, runs)
        negated = each.sign == "!="

        def meets(one: Narrowed) -> bool:
            values = list(self._values(one, key))
            return any(equal(value, text.strip()) for value in values for text in wanted) != negated

        return meets

    def _number(self, each: Comparison, runs: Sequence[Narrowed]) -> float:
        try:
            bound = float(each.text)
        except ValueError:
            raise UsageError(
                f"{self.option} {str(each)!r}: found {shortened(each.text, 200)!r} after "
                f"{each.sign}; accepted is a number"
            ) from None
        key = self.keys[each.key]
        if not any(_is_number(value) for one in runs for value in self._values(one, key)):
            raise UsageError(
                f"{self.option} {str(each)!r}: {each.sign} compares numbers; {_short(key)} is "
                f"{self._shown(key, runs)}",
                hint=f"such as {each.key}=VALUE",
            )
        return bound

    def _check_words(self, key: str, words: Sequence[str], runs: Sequence[Narrowed]) -> None:
        """Raise UsageError if a state or a cause is none that a run can have."""
        known = [*_words(key), *(str(value) for one in runs for value in self._values(one, key))]
        for word in map(str.strip, words):
            if word not in known and word != "null":
                close = get_close_matches(word, known, n=1, cutoff=0.5)
                # Its initials: `oom` is out_of_memory.
                close += [k for k in known if "".join(p[:1] for p in k.split("_")) == word.lower()]
                short = _short(key)
                raise UsageError(
                    f"{self.option}: there is no {short} {shortened(word, 200)!r}",
                    hint=(f"did you mean {short}={close[0]}? " if close else "")
                    + f"accepted are {', '.join(dict.fromkeys(known))}"
                    + ", or null for none" * (key == CAUSE),
                )

    def _values(self, one: Narrowed, key: str) -> Iterator[Any]:
        if key not in FACTS and not key.startswith(METRIC):
            yield from values_of(one, key)
            return
        facts = self._facts[id(one)]
        value: Any
        if key.startswith(METRIC):
            value = (facts.metrics or {}).get(key.removeprefix(METRIC), MISSING)
        elif key == STATE:
            value = facts.state
        elif key == CAUSE:
            value = facts.last_cause
        else:
            value = (facts.attempt if key == ATTEMPTS else facts.step) or 0
        if value is not MISSING:
            yield value

    def _shown(self, key: str, runs: Sequence[Narrowed]) -> str:
        """Return the values of a key, as the user would write them."""
        counts = Counter(show(value) for one in runs for value in self._values(one, key))
        if key in FACTS:
            return ", ".join(f"{text} ({count})" for text, count in counts.most_common(12))
        return shortened(listed(sorted(counts, key=_in_order), 12, rest=", …")) or "none"

    def nothing(self, part: Expression, runs: Sequence[Narrowed]) -> UsageError:
        """Return the error that no run meets a part of the conditions."""
        rest = len(self.selected) - len(runs)
        none = f"none of the {plural(len(runs), 'run')} that meet the rest" if rest else "no run"
        if isinstance(part, Comparison):
            key = self.keys[part.key]
            what = f"{_short(key)}{part.sign}{shortened(part.text, 200)}; its values are"
            return UsageError(f"{none} has {what} {self._shown(key, runs)}")
        keys = dict.fromkeys(self.keys[each.key] for each in grammar.comparisons(part))
        shown = "; ".join(f"{_short(key)} is {self._shown(key, runs)}" for key in keys)
        return UsageError(f"{self.option}: {none} meets it; {shown}")


def _words(key: str) -> Sequence[str]:
    """Return what a state or a cause can be; nothing for other keys."""
    from hpcrun.observe.status.run_state import STATES
    from hpcrun.policy.causes import KINDS

    return STATES if key == STATE else KINDS if key == CAUSE else ()


def _short(key: str) -> str:
    return key.removeprefix("run.") if key in FACTS else key


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _in_order(text: str) -> tuple[float, str]:
    """Return the key by which numbers are sorted as such, before words."""
    try:
        return float(text), text
    except ValueError:
        return math.inf, text


def resolve_key(selected: Sequence[Candidate], suffix: str, others: Collection[str] = ()) -> str:
    """Return the full key that a suffix stands for: a swept one, one of ``others``, else any.

    Raises UsageError if it matches no key, or several.
    """
    swept = list(dict.fromkeys(key for one in selected for key in one.run.swept))
    matching = _matching([*swept, *others], suffix)
    if not matching:
        shapes = {id(one.planned): one.run.spec for one in selected}
        for one in selected[:: max(1, len(selected) // 16)]:
            shapes.setdefault(id(one.run), one.run.spec)
        configured = list(dict.fromkeys(key for spec in shapes.values() for key in flatten(spec)))
        matching = _matching(configured, suffix)
        if not matching:
            leaves = [key.rpartition(".")[2] for key in (*swept, *configured)]
            leaves += [key.rpartition(".")[2] for key in others]
            close = set(get_close_matches(suffix.rpartition(".")[2], leaves, n=3, cutoff=0.6))
            candidates = [
                key
                for key in dict.fromkeys((*swept, *configured, *others))
                if key.rpartition(".")[2] in close
            ]
            known = [*swept, *(key.rpartition(".")[2] for key in others)]
            hint = f"did you mean {', '.join(candidates[:5])}?" if candidates else None
            if others:
                told = f"there are {listed(known, 12, rest=', …')}, metric.NAME and the spec's keys"
                hint = f"{hint} {told}" if hint else told
            elif hint is None and swept:
                hint = f"did you mean {', '.join(swept[:5])}?"
            raise UsageError(
                f"no swept or configured key ends in {shortened(suffix, 200)!r}", hint=hint
            )
    if len(matching) > 1:
        raise UsageError(
            f"{suffix!r} is ambiguous: it could be {', '.join(matching[:8])}",
            hint=f"write more of the key, such as {matching[0]}",
        )
    return matching[0]


def values_of(selected: Candidate, key: str) -> Iterator[Any]:
    """Yield the swept and the configured value of a key, if the run has them."""
    if key in selected.run.swept:
        yield selected.run.swept[key]
    value = lookup(selected.run.spec, key)
    if value is not MISSING:
        yield value


def flatten(data: Any, prefix: str = "") -> Iterator[str]:
    """Yield the dotted keys of the leaves of nested mappings."""
    if isinstance(data, dict) and data:
        for key, value in data.items():
            yield from flatten(value, f"{prefix}.{key}" if prefix else str(key))
    elif prefix:
        yield prefix


def equal(value: Any, text: str) -> bool:
    """Compare a value with what ``text`` writes: ``0.0003`` is ``3e-4``, ``null`` is None."""
    if isinstance(value, bool) or value is None:
        return text.lower() == show(value)
    if isinstance(value, (int, float)):
        try:
            return float(text) == float(value)
        except (ValueError, OverflowError):
            return False
    if isinstance(value, (list, dict)):
        try:
            return bool(bounded_json.parse(text.encode(errors="replace")) == value)
        except ValueError:
            return False
    return str(value) == text


def show(value: Any) -> str:
    """Return a value as the user would write it."""
    if isinstance(value, str):
        return value
    if type(value) is int or (type(value) is float and math.isfinite(value)):
        return repr(value)
    return json.dumps(value, default=str)


def _matching(keys: Sequence[str], suffix: str) -> list[str]:
    if suffix in keys:
        return [suffix]
    return [key for key in keys if key.endswith(f".{suffix}")]


def _meets(selected: Candidate, key: str, text: str) -> bool:
    return any(equal(value, text) for value in values_of(selected, key))


def lookup(data: Any, key: str) -> Any:
    """Return the value at a dotted key of nested mappings, or ``MISSING``."""
    for part in key.split("."):
        if not isinstance(data, dict) or part not in data:
            return MISSING
        data = data[part]
    return data

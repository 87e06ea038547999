"""Filter of runs by conditions on values, states and metrics: ``--where 'lr=3e-4'``."""

from __future__ import annotations

import math
import operator
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from difflib import get_close_matches
from typing import Any, Generic, Protocol, TypeVar

from hpcrun.errors import UsageError
from hpcrun.observe.read import expression as grammar
from hpcrun.observe.read import run_values
from hpcrun.observe.read.expression import Combination, Comparison, Expression, SearchedWord
from hpcrun.observe.read.run_values import (
    MISSING,
    SAID,
    Candidate,
    UnknownKey,
    equal,
    resolve_key,
    show,
    values_of,
)
from hpcrun.slurm.hostlist import parse_ranges
from hpcrun.text import Say, age, agreeing, listed, parse_age, plural, shortened

STATE, CAUSE, ATTEMPTS, STEP = ("run.state", "run.cause", "run.attempts", "run.step")
AGE = "run.age"
METRIC = "metric."
_ORDER: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


# States, and what others call them.
_ALSO = {
    **{"completed": ("done", "finished", "ok", "succeeded", "success", "successful")},
    **{"failed": ("crashed", "dead", "error"), "running": ("active", "alive", "r")},
    **{"pending": ("idle", "pd", "queued"), "cancelled": ("killed", "stopped")},
}
# A pattern of values, in which brackets are those of a list, and of runs: ``study/0-3``.
_WILD = re.compile(r"[*?]")
_AGE_UNITS = "s, m (minutes), h, d and w"
_RUNS = re.compile(r"([^/]+)/([0-9]{1,18}(?:-[0-9]{1,18})?(?:,[0-9]{1,18}(?:-[0-9]{1,18})?)*)")


class NothingMatches(UsageError):
    """No run is what was asked for, which is well formed."""


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

    @property
    def age(self) -> float | None: ...


# What is known of a run beside its values: the key (`run.state`, in short `state`) -> its value.
FACTS: dict[str, Callable[[Facts], Any]] = {
    STATE: lambda facts: facts.state,
    CAUSE: lambda facts: facts.last_cause,
    ATTEMPTS: lambda facts: facts.attempt or 0,
    STEP: lambda facts: facts.step or 0,
    AGE: lambda facts: facts.age,
}

Narrowed = TypeVar("Narrowed", bound=Candidate)
# Returns the facts of runs, in their order; with steps and metrics if the flag is set.
Look = Callable[[Sequence[Narrowed], bool], Sequence[Facts]]


def narrow(
    selected: Sequence[Narrowed],
    conditions: Sequence[str],
    option: str = "--where",
    look: Look[Narrowed] | None = None,
    say: Say = lambda message: None,
    text_of: Callable[[Narrowed], str] | None = None,
) -> list[Narrowed]:
    """Return the runs that meet every condition; error messages name the ``option``.

    A condition compares (see `hpcrun.observe.read.expression`) keys with values. A key is full and
    dotted, or a suffix that is unique among the swept keys and `FACTS` or, if it matches none of
    these, among all configured ones; ``metric.NAME`` is the last value of a metric, and so is
    ``NAME`` if it is no key. Numbers compare as numbers; ``a=1,2`` is either, ``a=x*`` a pattern.
    What a run has no value of is null, and neither less nor greater than anything.
    ``look`` is asked for facts only where a condition needs them, and only of the runs that meet
    all others; ``say`` tells of runs without a metric. ``text_of`` returns the text of a run in
    which words that stand alone are searched for; without it they are errors. Raises UsageError if
    a condition has another form, its key is unknown or ambiguous, or no run meets all of them.
    """
    if not conditions:
        return list(selected)
    parsed = [grammar.parse(one, option, words=text_of is not None) for one in conditions]
    parts = [part for one in parsed for part in _conjuncts(one)]
    filtering = _Filtering(selected, option, look, say, text_of)
    keys = {each.key for part in parts for each in grammar.comparisons(part)}
    filtering.keys = {key: filtering.resolve(key) for key in sorted(keys)}
    left = list(selected)
    for part in sorted(parts, key=filtering.needs_facts):
        before, left = left, filtering.meeting(left, part)
        if not left:
            raise filtering.nothing(part, before, parts)
    return left


def needs_facts(selected: Sequence[Candidate], conditions: Sequence[str]) -> bool:
    """Check whether conditions may change by themselves: they are about more than values."""
    found = (each.key for one in conditions for each in grammar.comparisons(grammar.parse(one)))
    return any(
        _is_fact(full) or full in SAID
        for full in (_resolve(selected, key)[0] for key in set(found))
    )


def _conjuncts(expression: Expression) -> tuple[Expression, ...]:
    if isinstance(expression, Combination) and expression.word == "and":
        return expression.parts
    return (expression,)


def _is_fact(key: str) -> bool:
    return key in FACTS or key.startswith(METRIC)


def _resolve(selected: Sequence[Candidate], key: str) -> tuple[str, UnknownKey | None]:
    """Return the full key, or ``metric.NAME``; and the error if it is not logged either."""
    if key.startswith(METRIC) and len(key) > len(METRIC):
        return key, None
    try:
        return resolve_key(selected, run_values.condition_key(key), (*FACTS, *SAID)), None
    except UnknownKey as error:
        return METRIC + key, error


class _Filtering(Generic[Narrowed]):
    """One call of `narrow`."""

    def __init__(
        self,
        selected: Sequence[Narrowed],
        option: str,
        look: Look[Narrowed] | None,
        say: Say,
        text_of: Callable[[Narrowed], str] | None,
    ) -> None:
        self.selected, self.option, self._look, self._say = selected, option, look, say
        self._text_of = text_of
        self.keys: dict[str, str] = {}
        # By the identity of the run: names of two roots may be the same.
        self._facts: dict[int, Facts] = {}
        # Of keys that are none: the error if no run logged a metric of that name.
        self._unknown: dict[str, UnknownKey] = {}
        # `metric.NAME` -> the name as it was logged, which may have more before it.
        self._logged: dict[str, str] = {}

    def resolve(self, key: str) -> str:
        """Return the full key, or ``metric.NAME``."""
        found, error = _resolve(self.selected, key)
        if error and self._look is None:
            raise error
        if error:
            self._unknown[found] = error
        return found

    def needs_facts(self, expression: Expression) -> bool:
        return any(_is_fact(self.keys[each.key]) for each in grammar.comparisons(expression))

    def meeting(self, runs: Sequence[Narrowed], expression: Expression) -> list[Narrowed]:
        """Return the runs that meet an expression."""
        compared = list(grammar.comparisons(expression))
        if self.needs_facts(expression):
            self._read(runs, compared)
        tests = {each: self._test(each, runs) for each in compared}

        def meets(one: Narrowed, part: Expression) -> bool:
            if isinstance(part, Comparison):
                return tests[part](one)
            if isinstance(part, SearchedWord):
                return self._is_called(one, part)
            if part.word == "not":
                return not meets(one, part.parts[0])
            return (all if part.word == "and" else any)(meets(one, each) for each in part.parts)

        return [one for one in runs if meets(one, expression)]

    def _is_called(self, one: Narrowed, word: SearchedWord) -> bool:
        """Check whether a word is a pattern of a run's name, names it, or is in its text."""
        text, experiment = word.text, one.name.partition("/")[0]
        if not word.is_quoted and _WILD.search(text):
            pattern = _pattern(text)
            return bool(pattern.fullmatch(one.name) or pattern.fullmatch(experiment))
        if not word.is_quoted and (named := _RUNS.fullmatch(text)):
            spans = parse_ranges(named[2])
            return named[1] == experiment and any(one.run.number in span for span in spans)
        return self._text_of is not None and text.lower() in self._text_of(one).lower()

    def _read(self, runs: Sequence[Narrowed], compared: Sequence[Comparison]) -> None:
        """Read the facts of runs that are not known yet."""
        if self._look is None:
            raise UsageError(f"{self.option}: states and metrics are not known here")
        # What a run logged last is the newest sign of one that left no end.
        values = any(key in (STEP, AGE) or key.startswith(METRIC) for key in self.keys.values())
        new = [one for one in runs if id(one) not in self._facts]
        found = self._look(new, values) if new else []
        self._facts.update((id(one), facts) for one, facts in zip(new, found, strict=True))
        ordered = {self.keys[each.key] for each in compared if each.sign in _ORDER}
        for key in sorted({self.keys[each.key] for each in compared}):
            if key.startswith(METRIC):
                self._find_metric(key, runs)
            if key in ordered and key.startswith(METRIC):
                self._tell_of_missing(key, runs)

    def _find_metric(self, key: str, runs: Sequence[Narrowed]) -> None:
        """Note which metric a key means, by its end too; raise UsageError if no run logged it."""
        names = sorted({name for one in runs for name in self._facts[id(one)].metrics or {}})
        wanted = key.removeprefix(METRIC)
        ending = [name for name in names if name.endswith((f"/{wanted}", f".{wanted}"))]
        if wanted not in names and len(ending) > 1:
            raise UsageError(
                f"{self.option}: {shortened(wanted, 200)!r} is ambiguous: it could be the metric "
                f"{listed(ending, 8)}",
                hint=f"write more of it, such as {METRIC}{ending[0]}",
            )
        if wanted not in names and not ending:
            there = listed(names, 12, rest=", …")
            if unknown := self._unknown.get(key):
                logged = f"; logged metrics are {there}" if there else ""
                raise UnknownKey(unknown.message, hint=f"{unknown.hint or ''}{logged}")
            close = get_close_matches(wanted, names, n=3, cutoff=0.6)
            raise UsageError(
                f"{self.option}: no run has logged a metric {shortened(wanted, 200)!r}",
                hint=(f"did you mean {', '.join(close)}? " if close else "")
                + (f"logged are {there}" if there else "no metric was logged yet"),
            )
        self._logged[key] = wanted if wanted in names else ending[0]

    def _tell_of_missing(self, key: str, runs: Sequence[Narrowed]) -> None:
        """Tell which runs have no value of a metric that is compared as a number."""
        wanted = self._logged[key]
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
            compare = _ORDER[each.sign]
            bound = self._seconds(each) if key == AGE else self._number(each, runs)
            return lambda one: any(
                _is_number(value) and compare(value, bound) for value in self._values(one, key)
            )
        if key == AGE:
            raise UsageError(
                f"{self.option} {str(each)!r}: an age is compared by <, <=, > or >=",
                hint=f"in quotes, as the shell takes < and > for files: '{each.key}>30d'",
            )
        if each.sign == "~":
            part = each.text.lower()
            return lambda one: any(part in show(it).lower() for it in self._values(one, key))
        wanted = [each.text, *(each.text.split(",") if "," in each.text else ())]
        if key in (STATE, CAUSE):
            self._check_words(key, wanted[1:] or wanted, runs)
        negated = each.sign == "!="
        texts = [text.strip() for text in wanted]
        patterns = [_pattern(text) for text in texts if _WILD.search(text)]

        def meets(one: Narrowed) -> bool:
            values = list(self._values(one, key)) or [None]
            is_equal = any(equal(value, text) for value in values for text in texts) or any(
                pattern.fullmatch(value)
                for value in values
                if isinstance(value, str)
                for pattern in patterns
            )
            return is_equal != negated

        return meets

    def _number(self, each: Comparison, runs: Sequence[Narrowed]) -> float:
        try:
            bound = float(each.text)
        except ValueError:
            raise UsageError(
                f"{self.option} {str(each)!r}: found {shortened(each.text, 200)!r} after "
                f"{each.sign}; accepted is a number",
                hint="<> is written !=" if each.text[:1] == ">" else None,
            ) from None
        key = self.keys[each.key]
        if not any(_is_number(value) for one in runs for value in self._values(one, key)):
            raise UsageError(
                f"{self.option} {str(each)!r}: {each.sign} compares numbers; {_short(key)} is "
                f"{self._values_text(key, runs)}",
                hint=f"such as {each.key}=VALUE",
            )
        return bound

    def _seconds(self, each: Comparison) -> float:
        seconds = parse_age(each.text)
        if seconds is not None:
            return seconds
        begin = f"{self.option} {str(each)!r}: "
        if parse_age(f"{each.text}d") is not None:
            raise UsageError(
                f"{begin}{each.text} has no unit; accepted are {_AGE_UNITS}",
                hint=f"for days: '{each.key}{each.sign}{each.text}d'",
            )
        raise UsageError(
            f"{begin}found {shortened(each.text, 200)!r} after {each.sign}; accepted is a number "
            f"and a unit: {_AGE_UNITS}",
            hint=f"such as '{each.key}{each.sign}30d'",
        )

    def _check_words(self, key: str, words: Sequence[str], runs: Sequence[Narrowed]) -> None:
        """Raise UsageError if a state or a cause is none that a run can have."""
        found = (value for one in runs for value in self._values(one, key))
        known = list(dict.fromkeys([*words_of(key), *filter(None, found)]))
        for word in map(str.strip, words):
            if not any(map(_pattern(word).fullmatch, (*known, "null"))):
                also = next((k for k, words in _ALSO.items() if word.lower() in words), None)
                close = [also] if also else get_close_matches(word.lower(), known, 1, 0.5)
                # Its initials: `oom` is out_of_memory.
                close += [k for k in known if "".join(p[:1] for p in k.split("_")) == word.lower()]
                short = _short(key)
                raise UsageError(
                    f"{self.option}: there is no {short} {shortened(word, 200)!r}",
                    hint=(f"did you mean {short}={close[0]}? " if close else "")
                    + f"accepted are {', '.join(known)}"
                    + ", or null for none" * (key == CAUSE),
                )

    def _values(self, one: Narrowed, key: str) -> Iterator[Any]:
        if key in FACTS:
            yield FACTS[key](self._facts[id(one)])
        elif key.startswith(METRIC):
            value = (self._facts[id(one)].metrics or {}).get(self._logged[key], MISSING)
            if value is not MISSING:
                yield value
        else:
            yield from values_of(one, key)

    def _values_text(self, key: str, runs: Sequence[Narrowed]) -> str:
        """Return the values of a key, as the user would write them."""
        if key == AGE:
            ages = [value for one in runs for value in self._values(one, key) if value is not None]
            shown = dict.fromkeys(age(each) for each in (min(ages), max(ages))) if ages else ()
            return " to ".join(shown) or "not known"
        counts = Counter(show(value) for one in runs for value in self._values(one, key))
        if key in FACTS:
            return ", ".join(f"{text} ({count})" for text, count in counts.most_common(12))
        return shortened(listed(sorted(counts, key=_in_order), 12, rest=", …")) or "none"

    def nothing(
        self, part: Expression, runs: Sequence[Narrowed], parts: Sequence[Expression]
    ) -> NothingMatches:
        """Return the error that no run meets a part of the conditions, which are ``parts``."""
        rest = len(self.selected) - len(runs)
        none = f"none of the {plural(len(runs), 'run')} that meet the rest" if rest else "no run"
        if isinstance(part, Comparison):
            key = self.keys[part.key]
            what = f"{_short(key)}{part.sign}{shortened(part.text, 200)}; its values are"
            alike = [one for one in parts if isinstance(one, Comparison) and one.sign == "="]
            alike = [one for one in alike if part.sign == "=" and self.keys[one.key] == key]
            either = shlex.quote(" or ".join(map(str, alike)))
            hint = f"for runs with either: {either}" if rest and len(alike) > 1 else None
            return NothingMatches(f"{none} has {what} {self._values_text(key, runs)}", hint=hint)
        if isinstance(part, SearchedWord):
            return NothingMatches(f"{none} is called {shortened(part.text, 200)!r}")
        keys = dict.fromkeys(self.keys[each.key] for each in grammar.comparisons(part))
        shown = "; ".join(f"{_short(key)} is {self._values_text(key, runs)}" for key in keys)
        return NothingMatches(f"{self.option}: {none} meets it; {shown}")


def asks_ages_alone(conditions: Sequence[str]) -> bool:
    """Check whether conditions compare nothing but ages; False without any."""
    found = [each.key for one in conditions for each in grammar.comparisons(grammar.parse(one))]
    return bool(found) and {*found} <= {AGE, _short(AGE)}


def words_of(key: str) -> Sequence[str]:
    """Return the words that a state or a cause can be; nothing for other keys."""
    from hpcrun.observe.status.run_state import STATES
    from hpcrun.policy.causes import KINDS

    return STATES if key == STATE else KINDS if key == CAUSE else ()


def _pattern(text: str) -> re.Pattern[str]:
    """Return the pattern that ``*`` and ``?`` of a text make."""
    parts = (".*" if c == "*" else "." if c == "?" else re.escape(c) for c in text)
    return re.compile("".join(parts), re.DOTALL)


def _short(key: str) -> str:
    return key.removeprefix("run.") if key in (*FACTS, *SAID) else key


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _in_order(text: str) -> tuple[float, str]:
    """Return the key by which numbers are sorted as such, before words."""
    try:
        return float(text), text
    except ValueError:
        return math.inf, text

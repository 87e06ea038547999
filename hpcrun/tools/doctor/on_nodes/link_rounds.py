"""Has nodes measure each other, round by round, until nothing is in doubt."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hpcrun.run.check_in import pairing
from hpcrun.run.check_in.pairing import Pair, PairRates
from hpcrun.text import listed, plural

# Seconds for the answer of one pair.
PAIR = 25.0
# Times that slow pairs are measured again at once, and then one pair after the other, if there are
# no more than so many; further rounds.
_REPEATS, _ALONE, _MOST_ALONE, _FURTHER = 1, 2, 8, 3

Ask = Callable[[Mapping[str, dict[str, Any]], float], dict[str, dict[str, Any]]]


class LinkRounds:
    """The rounds of one test.

    ``ports`` are where nodes listen, ``rates`` take what is measured; ``ask`` asks some nodes at
    once and returns the answers that come in time, ``progress`` tells what is done.
    """

    def __init__(
        self,
        what: str,
        ports: Mapping[str, tuple[str, int]],
        rates: PairRates,
        ask: Ask,
        progress: Callable[[str], None],
    ) -> None:
        self._what, self._ports, self._rates = what, ports, rates
        self._ask, self._progress = ask, progress

    def measure(self) -> None:
        """Go through all rounds, and measure again what was slow."""
        rates = self._rates
        rounds = pairing.rounds_of(rates.nodes)
        for number, pairs in enumerate(rounds, start=1):
            self._progress(f"measuring {self._what}, round {number} of {len(rounds)}")
            self._round(pairs)
        for _ in range(_REPEATS):
            self._again(rates.doubtful_pairs())
        # Other pairs take processors, and ways through the fabric.
        for _ in range(_ALONE):
            if len(rates.doubtful_pairs()) <= _MOST_ALONE:
                for pair in rates.doubtful_pairs():
                    self._again([pair])
        for _ in range(_FURTHER):
            pairs = rates.further_round()
            if not pairs:
                break
            self._progress(f"measuring {self._what}: {plural(len(pairs), 'more pair')}")
            self._round(pairs)
            met = {frozenset(pair) for pair in pairs}
            self._again([pair for pair in rates.doubtful_pairs() if frozenset(pair) in met])

    def _again(self, pairs: Sequence[Pair]) -> None:
        """Measure pairs once more, each node in one pair at a time."""
        left = list(pairs)
        while left:
            busy: set[str] = set()
            now = []
            for pair in left:
                if not busy & {*pair}:
                    now.append(pair)
                    busy |= {*pair}
            left = [pair for pair in left if pair not in now]
            told = listed([f"{one} and {other}" for one, other in now], 3)
            self._progress(f"measuring once more what was slow: {told}")
            self._round(now)

    def _round(self, pairs: Sequence[Pair]) -> None:
        questions = {
            one: {
                "type": "measure",
                "address": self._ports[other][0],
                "port": self._ports[other][1],
            }
            for one, other in pairs
        }
        answers = self._ask(questions, PAIR)
        for pair in pairs:
            answer = answers.get(pair[0], {"error": "no answer in time"})
            if "error" in answer:
                self._rates.fail(pair, str(answer["error"]))
            else:
                numbers = (answer["sends"], answer["receives"], answer["latency"])
                self._rates.add(pair, *map(float, numbers))

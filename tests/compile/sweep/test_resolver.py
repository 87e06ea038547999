"""Random specs and sweeps: what the interpolation graph gives is OmegaConf's own answer."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from hpcrun.compile.source.marked_tree import Key, SourceMark, Tree, keys
from hpcrun.compile.source.problems import Problems
from hpcrun.compile.sweep.point import Assignment, Point
from hpcrun.compile.sweep.resolver import Resolver, _Structure

SPECS = 1000 if os.environ.get("HPCRUN_THOROUGH") == "1" else 150
MARK = SourceMark("spec.yaml", 1, Path("/"))
SCALARS = (0, 1, -3, 2.5, 1e-5, 1e22, True, False, None, "", "plain", "1", "a b", "x=y", "\\n")
NAMES = ("a", "b", "lr", "model", "layers", "k-v", "_x")


class Writer:
    """Writes one random spec and a sweep over it."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.spec = self._mapping(3)
        self.keys = list(keys(self.spec))
        self.random.shuffle(self.keys)
        leaves = [key for key in self.keys if not isinstance(self._at(key), dict)]
        for key in self.random.sample(leaves, min(6, len(leaves))):
            self._put(key, self._interpolation(key))

    def points(self) -> list[Point]:
        """A product of values of some keys, which mostly do not overlap."""
        chosen: list[Key] = []
        for key in self.random.sample(self.keys, min(5, len(self.keys))):
            overlaps = any(key[: len(o)] == o or o[: len(key)] == key for o in chosen)
            if not overlaps or self.random.random() < 0.2:
                chosen.append(key)
        found: list[Point] = [()]
        for key in chosen[:3]:
            values = [self._value(key) for _ in range(self.random.randint(2, 3))]
            found = [(*point, _assignment(key, value)) for point in found for value in values]
        return found[:1] + self.random.sample(found[1:], min(3, len(found) - 1))

    def _other(self, key: Key) -> Key:
        """A key to refer to: mostly one before this in some order, so that few are circles."""
        if self.random.random() < 0.95 and (earlier := self.keys[: self.keys.index(key)]):
            return self.random.choice(earlier)
        return self.random.choice(self.keys)

    def _mapping(self, depth: int) -> dict[str, Any]:
        names = self.random.sample(NAMES, self.random.randint(1, 4))
        return {name: self._node(depth) for name in names}

    def _node(self, depth: int) -> Any:
        kind = self.random.random()
        if depth and kind < 0.4:
            return self._mapping(depth - 1)
        if kind < 0.5:
            return [self.random.choice(SCALARS) for _ in range(self.random.randint(0, 3))]
        return self.random.choice(SCALARS)

    def _value(self, key: Key) -> Any:
        kind = self.random.random()
        if kind < 0.1:
            return self._mapping(1)
        if kind < 0.15:
            return [1, "${" + ".".join(self._other(key)) + "}"]
        if kind < 0.25:
            return self._interpolation(key)
        return self.random.choice(SCALARS)

    def _interpolation(self, key: Key) -> str:
        other = self._other(key)
        reference = "${" + ".".join(other) + "}"
        kind = self.random.randrange(12)
        common = 0
        while common < min(len(key), len(other)) - 1 and key[common] == other[common]:
            common += 1
        relative = "${" + "." * (len(key) - common) + ".".join(other[common:]) + "}"
        last = "${" + ".".join(self._other(key)) + "}"
        return (
            reference,
            reference,
            reference,
            f"x/{reference}/y",
            f"{reference}-{last}",
            relative,
            f"<{relative}>",
            "${oc.env:HPCRUN_TEST_WORD}",
            "${oc.env:HPCRUN_TEST_NOWHERE,none}" + reference,
            "${hpcrun:directory}/" + reference,
            "${oc.select:" + ".".join(other) + ",3}",
            r"\${" + ".".join(other) + "} " + reference,
        )[kind]

    def _at(self, key: Key) -> Any:
        found: Any = self.spec
        for part in key:
            found = found[part]
        return found

    def _put(self, key: Key, value: Any) -> None:
        self._at(key[:-1])[key[-1]] = value


def _assignment(key: Key, value: Any) -> Assignment:
    return Assignment(key, value, value, MARK)


def _alone(tree: Tree, problems: Problems) -> Tree:
    return tree


@pytest.mark.timeout(900)
def test_the_graph_gives_omegaconfs_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HPCRUN_TEST_WORD", "word")
    monkeypatch.delenv("HPCRUN_TEST_NOWHERE", raising=False)
    followed: list[Any] = []
    patched = _Structure.patched

    def counted(self: _Structure, point: Point) -> Any:
        found = patched(self, point)
        followed.append(found)
        return found

    monkeypatch.setattr(_Structure, "patched", counted)
    points = whole = 0
    for seed in range(SPECS):
        writer = Writer(seed)
        base = Tree(writer.spec, {(): MARK})
        resolve = Resolver(base, _alone)
        for point in writer.points():
            points += 1
            ours, theirs = Problems(), Problems()
            fast, slow = resolve(point, ours), resolve.slowly(point, theirs)
            assert repr(fast.data) == repr(slow.data), (seed, point)
            assert ours.found == theirs.found, (seed, point)
            if theirs:
                continue
            try:
                config = OmegaConf.create(slow.tree.data)
                expected = OmegaConf.to_container(config, resolve=True)
            except OmegaConfBaseException as error:
                pytest.fail(f"{seed}: {error}")
            assert repr(fast.data) == repr(expected), (seed, point)
            whole += 1
    assert points > 3 * SPECS
    assert whole > points / 4
    assert sum(one is not None for one in followed) > points / 6

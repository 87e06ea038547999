"""Resolves interpolations for every point of a sweep, mostly once for all of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from hpcrun.compile.interpolate import interpolate, references
from hpcrun.compile.problems import Problems
from hpcrun.compile.sweep_point import Option, Point
from hpcrun.compile.tree import Tree, merge, nest


class Resolver:
    """Resolves interpolations per point; once for all points that no interpolation looks at."""

    def __init__(self, base: Tree, with_deepspeed: Callable[[Tree, Problems], Tree]) -> None:
        self.base, self.with_deepspeed = base, with_deepspeed
        quiet = Problems()
        self.full = with_deepspeed(base, quiet)
        self.resolved = interpolate(self.full, quiet)
        self.references = None if quiet else references(self.full.data)

    def __call__(self, point: Point, problems: Problems) -> tuple[Tree, dict[str, Any]]:
        if self.references is not None and all(map(self._is_apart, point)):
            tree, data = self.full, self.resolved
            for option in point:
                tree = option.tree.over(tree)
                data = merge(data, nest(option.key, option.value))
            return tree, data
        tree = self.base
        for option in point:
            tree = option.tree.over(tree)
        tree = self.with_deepspeed(tree, problems)
        return tree, interpolate(tree, problems)

    def _is_apart(self, option: Option) -> bool:
        assert self.references is not None
        looked_at = {*self.references, ("deepspeed_config",)}
        apart = not any(
            key[: len(option.key)] == option.key or option.key[: len(key)] == key
            for key in looked_at
        )
        return apart and references(option.value) == set() and "${" not in json.dumps(option.value)

"""Short keys: ``lr`` is ``config.lr`` where no other key of the composed spec ends in it."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

from hpcrun.compile.source.marked_tree import Key, Reporter, Tree, dotted, get_at, keys
from hpcrun.compile.spec import schema
from hpcrun.compile.target import deepspeed_keys
from hpcrun.state.spec.experiment import Spec
from hpcrun.state.spec.sweep_block import Block, When


def _parts(*kinds: object) -> tuple[str, ...]:
    return tuple(name for name, kind in schema.hints(When).items() if kind in kinds)


# Parts of a sweep that are mappings of keys, and those that are lists of such mappings or of blocks
_MAPPINGS = _parts(dict[str, Any])
_LISTS, _BLOCKS = _parts(list[dict[str, Any]]), _parts(list[Block], list[When])
# Keys with one last part, among which no more than that part is looked for where they are more.
_MOST_ALIKE = 1_000
# Of a sweep's own keys, the one that may be changed by its short name; `seed` is the program's.
_OF_SWEEP: Key = ("sweep", "max_parallel")
# Its keys have the names of those of `resources`, which are meant by one word.
_GROW: Key = ("recovery", "grow")


class ShortKeys:
    """Finds the keys of a tree that short ones stand for; a key that it has means itself.

    ``is_key`` says which keys it has, in place of `has_key`.
    """

    def __init__(self, tree: Tree, is_key: Callable[[Key], bool] | None = None) -> None:
        self._data, self._is_key = tree.data, is_key or functools.partial(has_key, tree)
        self._swept: dict[Key, None] = {}
        self._alike: dict[str, list[Key]] | None = None

    def knows(self, key: Key) -> bool:
        """Return whether there is a key, or one that ends in it."""
        return self._is_key(key) or bool(self.meant(key))

    def full(self, key: Key) -> Key:
        """Return the one key that ends in ``key``; the same key where there is none, or several."""
        meant = () if self._is_key(key) or key in self._swept else self.meant(key)
        return next(iter(meant)) if len(meant) == 1 else key

    def meant(self, key: Key) -> tuple[Key, ...]:
        """Return all keys that end in ``key``."""
        if self._alike is None:
            self._alike = {}
            for one in dict.fromkeys((*_candidates(self._data), *self._swept)):
                self._alike.setdefault(one[-1], []).append(one)
        alike = self._alike.get(key[-1], [])
        if len(key) > 1 and len(alike) > _MOST_ALIKE:
            return ()
        found = (one for one in alike if one[-len(key) :] == key)
        return tuple(one for one in found if len(key) > 1 or one[:2] != _GROW)

    def spell_out(self, block: dict[str, Any], report: Reporter) -> dict[str, Any]:
        """Return a checked sweep with full keys, at which its tree's marks are then too."""
        named: set[Key] = set()

        def collected(given: dict[str, Any], _at: Key) -> dict[str, Any]:
            named.update(tuple(name.split(".")) for name in given)
            return given

        _changed(block, ("sweep",), collected)
        self._swept = {key: None for key in sorted(named) if self._is_key(key)}
        self._alike = None
        renamed: dict[Key, str] = {}

        def spelled(given: dict[str, Any], at: Key) -> dict[str, Any]:
            found = {}
            for name, value in given.items():
                full = dotted(self.full(tuple(name.split("."))))
                inside = (*at, name)
                if full in found or (full != name and full in given):
                    report.at(inside, f"is {full}, which is given here too", "remove one")
                    continue
                if full != name:
                    renamed[inside] = full
                found[full] = value
            return found

        block = _changed(block, ("sweep",), spelled)
        if renamed:
            marks = report.tree.marks
            report.tree.marks = {_moved(key, renamed): mark for key, mark in marks.items()}
        return block


def _changed(
    block: dict[str, Any], place: Key, change: Callable[[dict[str, Any], Key], dict[str, Any]]
) -> dict[str, Any]:
    """Return a sweep with what ``change`` makes of each mapping of keys in it, and its place."""
    result = dict(block)
    for part in _MAPPINGS:
        if part in block:
            result[part] = change(block[part], (*place, part))
    for part in _LISTS:
        at = (*place, part)
        result[part] = [change(one, (*at, str(n))) for n, one in enumerate(block[part])]
    for part in _BLOCKS:
        at = (*place, part)
        result[part] = [_changed(one, (*at, str(n)), change) for n, one in enumerate(block[part])]
    if block.get("search") is not None:
        at = (*place, "search")
        space = dict(block["search"]["space"])
        for name, form in space.items():
            if isinstance(form, dict) and isinstance(form.get("when"), dict):
                space[name] = {**form, "when": change(form["when"], (*at, "space", name, "when"))}
        points = enumerate(block["search"]["first"])
        result["search"] = {
            **block["search"],
            "space": change(space, (*at, "space")),
            "first": [change(one, (*at, "first", str(n))) for n, one in points],
        }
    if block["random"] is not None:
        drawn = change(block["random"]["keys"], (*place, "random", "keys"))
        result["random"] = {**block["random"], "keys": drawn}
    return result


def has_key(tree: Tree, key: Key) -> bool:
    """Return whether a key, in full, is a field of a spec, given in a file, or DeepSpeed's."""
    missing = object()
    if schema.find(Spec, key) is not None or get_at(tree.data, key, missing) is not missing:
        return True
    return key[0] == "deepspeed" and len(key) > 1 and deepspeed_keys.is_key(key[1:])


def _candidates(data: dict[str, Any]) -> Iterator[Key]:
    """Yield the keys that a short one may stand for: the fields of a spec, and all that is given.

    What nobody gave to ``estimate``, which describes the model of ``config``, is none of them:
    ``layers`` is the program's. A part with a dot in it cannot be typed.
    """
    fields = (tuple(name.split(".")) for name in schema.fields(Spec))
    fields = (key for key in fields if key[0] != "estimate")
    for key in itertools.chain(fields, keys(data)):
        if (key[0] != "sweep" or key == _OF_SWEEP) and not any("." in part for part in key):
            yield key


def _moved(key: Key, renamed: dict[Key, str]) -> Key:
    return tuple(renamed.get(key[: at + 1], part) for at, part in enumerate(key))

"""Checks plain data against the dataclasses of a spec, and finds all problems."""

from __future__ import annotations

import functools
import re
import types
from difflib import SequenceMatcher
from math import isfinite
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from hpcrun import shared_dataclass
from hpcrun.compile import added_keys
from hpcrun.compile.source.marked_tree import Key, Reporter, dotted
from hpcrun.compile.source.problems import did_you_mean, kind_of, listing
from hpcrun.compile.source.yaml_reader import plain_value
from hpcrun.compile.spec import value_hints
from hpcrun.errors import HpcrunError

# A field -> what users of other launchers call it.
_OTHER_NAMES = {
    "cluster": "profile executor",
    "code.root": "cwd",
    "args": "arguments",
    "config": "params",
    "deepspeed.train_batch_size": "batch_size",
    "deepspeed.train_micro_batch_size_per_gpu": "micro_batch_size",
    "deepspeed_config": "ds_config",
    "entry": "cmd command script entrypoint entry_point",
    "environment.setup": "modules setup",
    "environment.variables": "env env_vars",
    "extends": "dependencies include inherit",
    "name": "job_name",
    "notes": "description desc",
    "parallel.data": "dp dp_size data_parallel_size",
    "parallel.expert": "ep ep_size",
    "parallel.pipeline": "pp pp_size pipeline_parallel_size",
    "parallel.sequence": "sp cp context_parallel_size",
    "parallel.tensor": "tp tp_size tensor_parallel_size",
    "progress.pattern": "regex regexp",
    "recovery.max_failures": "max_retries retries max_requeue",
    "resources.cpus_per_task": "cores cpus",
    "resources.gpus_per_node": "gpu gpus gpus_per_task gres num_gpus",
    "resources.mem": "memory mem_gb ram",
    "resources.nodes": "nnodes node num_nodes",
    "resources.ntasks_per_node": "nproc_per_node ntasks tasks tasks_per_node",
    "resources.partition": "queue",
    "resources.sbatch.nodelist": "nodelist",
    "sweep.max_parallel": "max_parallel n_jobs num_parallel",
    "resources.time": "timeout timeout_min time_limit walltime",
}
_FIELD_OF = {other: name for name, others in _OTHER_NAMES.items() for other in others.split()}

# What these blocks call so is meant there alone.
_OF_THEIR_OWN = ("sweep.", "estimate.", "roles.")
# Keys of a block that are listed, beside a hint and without one.
_SOME, _ALL = 8, 40
# A key at the top is a block's if it is spelled so much like it, else rather the program's own.
_TYPO = 0.75
# A slip in the name of a block's key, which is written at the top; shorter ones are too alike.
_SLIP, _LONG = 0.88, 6


@functools.cache
def hints(cls: type) -> dict[str, Any]:
    """Return field name -> type of a dataclass, in the order declared."""
    found = get_type_hints(cls)
    return {name: found[name] for name in shared_dataclass.names(cls)}


def defaults(cls: type) -> dict[str, Any]:
    """Return the default of every field as plain data, blocks filled in."""
    data: dict[str, Any] = shared_dataclass.asdict(cls())
    return data


def dataclass_of(annotation: Any) -> type | None:
    """Return the dataclass in ``Block`` or ``Block | None``."""
    options = get_args(annotation) if is_union(annotation) else (annotation,)
    for option in options:
        if isinstance(option, type) and shared_dataclass.is_dataclass(option):
            return option
    return None


def find(cls: type, key: Key) -> Any | None:
    """Return the type of the field at ``key``; None if there is none (a free block may hold it)."""
    if not key:
        return cls
    annotation = hints(cls).get(key[0]) or added_keys.annotation(cls, key[0])
    block = dataclass_of(annotation)
    if len(key) == 1:
        return annotation
    return find(block, key[1:]) if block else None


def is_free(cls: type, key: Key) -> bool:
    """Return whether ``key`` is below a block that is free in form, such as ``config``."""
    return any(get_origin(find(cls, key[:length])) is dict for length in range(1, len(key)))


def fields(cls: type, prefix: str = "") -> list[str]:
    """List the full key of every field, blocks before their fields."""
    found: list[str] = []
    for name, annotation in hints(cls).items():
        block = dataclass_of(annotation)
        found += [prefix + name, *(fields(block, f"{prefix}{name}.") if block else [])]
    return found


def accepted_keys(cls: type) -> list[str]:
    """Return the names of a block's keys, with those that installed packages add."""
    return [*hints(cls), *added_keys.names(cls)]


def suggest(cls: type, root: type, key: Key, value: Any = None) -> str | None:
    """Return a hint at what an unknown key, of a value if it is known, was perhaps meant to be."""
    # Not at the top: it is for mistakes alone.
    from hpcrun.compile.spec import foreign_keys

    accepted = accepted_keys(cls)
    word = key[-1]
    if elsewhere := foreign_keys.of_unknown(key, value, is_spec="entry" in hints(root)):
        return elsewhere
    spelled = did_you_mean(word, [name for name in accepted if _may_be(word, name, key)])
    near = _FIELD_OF.get(word.lower().replace("-", "_"))
    if near and not (spelled and f"'{word.lower()}" in spelled):
        return f"did you mean '{near}'?"
    alike = [
        full
        for full in fields(root)
        if _is_typed_as(word, full.rsplit(".", 1)[-1], at_the_top=len(key) == 1)
        and not full.startswith(_OF_THEIR_OWN)
    ]
    nearest = min(alike, key=lambda full: full.count("."), default=None)
    if nearest == word and len(key) > 1:
        return f"{word} stands at the top, not below {dotted(key[:-1])}"
    return f"did you mean '{nearest}'?" if nearest else spelled


def _is_typed_as(word: str, name: str, *, at_the_top: bool) -> bool:
    """Return whether a word is a key's name; at the top, or a slip of it."""
    if word == name or not at_the_top or abs(len(word) - len(name)) > 1 or len(word) < _LONG:
        return word == name
    return SequenceMatcher(None, word, name).ratio() >= _SLIP


def _may_be(word: str, name: str, key: Key) -> bool:
    """Check that a key may be meant by a word: any of a block, and at the top if it is a typo.

    ``seed`` is spelled a little like ``sweep``, ``steps`` like ``notes``: values of the program's.
    """
    return len(key) > 1 or SequenceMatcher(None, str(word).lower(), name).ratio() >= _TYPO


class SchemaChecker:
    """Converts data to a dataclass's types and reports what does not fit.

    Parameters
    ----------
    root
        The dataclass of the whole file, whose fields are suggested for unknown keys.
    """

    def __init__(self, report: Reporter, root: type) -> None:
        self.report, self.root = report, root

    def block(self, data: Any, cls: type, key: Key = ()) -> dict[str, Any]:
        """Return the data of a block with every field present and of its type.

        What is wrong is reported and replaced by the field's default.
        """
        result = defaults(cls)
        if not isinstance(data, dict):
            hint = value_hints.of_block(key, data, result)
            self._wrong(key, data, f"a mapping of {listing(result)}", hint)
            return result
        for name, value in data.items():
            try:
                annotation = hints(cls).get(name) or added_keys.annotation(cls, str(name))
            except HpcrunError as error:
                self.report.at((*key, name), error.message, error.hint)
                continue
            if annotation is None:
                self._unknown((*key, name), value, cls)
                continue
            converted = self.value(value, annotation, (*key, name))
            if converted is not _WRONG:
                result[name] = converted
        return result

    def value(self, value: Any, annotation: Any, key: Key) -> Any:
        """Return ``value`` as the type ``annotation``, or ``_WRONG`` after a problem."""
        if annotation is Any:
            return value
        if is_union(annotation):
            return self._union(value, annotation, key)
        block = dataclass_of(annotation)
        if block:
            return self.block(value, block, key)
        origin = get_origin(annotation)
        if origin is Literal:
            return self._literal(value, annotation, key)
        if origin is list:
            return self._list(value, get_args(annotation)[0], key)
        if origin is dict:
            return self._dict(value, get_args(annotation)[1], key)
        convert = {int: self._int, float: self._float, bool: self._bool, str: self._str}
        return convert[annotation](value, key)

    def _union(self, value: Any, annotation: Any, key: Key) -> Any:
        options = get_args(annotation)
        if value is None and types.NoneType in options:
            return None
        rest = [option for option in options if option is not types.NoneType]
        block = dataclass_of(annotation)
        words = [one for one in rest if get_origin(one) is Literal]
        if words:
            if isinstance(value, str) and not WHOLE.fullmatch(value):
                return self._literal(value, words[0], key)
            return self._int(value, key)
        if len(rest) == 1 or (block and isinstance(value, dict)):
            return self.value(value, block or rest[0], key)
        if block:
            accepted = f"a name, or a mapping of {listing(hints(block))}"
            hint = value_hints.of_union(key, value)
            return value if isinstance(value, str) else self._wrong(key, value, accepted, hint)
        if isinstance(value, list):
            return self._list(value, str, key)
        if isinstance(value, str):
            return value
        return self._wrong(key, value, "a string or a list of strings")

    def _literal(self, value: Any, annotation: Any, key: Key) -> Any:
        accepted = get_args(annotation)
        if value in accepted:
            return value
        added = added_keys.words(accepted)
        if value in added:
            try:
                added_keys.check_word(accepted, value)
            except HpcrunError as error:
                self.report.at(key, error.message, error.hint)
                return _WRONG
            return value
        every = [*accepted, *added]
        near = did_you_mean(value, every) if isinstance(value, str) else None
        hint = value_hints.of_word(key, value) or near
        return self._wrong(key, value, " or ".join(every), hint)

    def _list(self, value: Any, item: Any, key: Key) -> Any:
        if not isinstance(value, list):
            accepted = {str: "strings", float: "numbers"}.get(item, "mappings")
            is_item = isinstance(value, (str, int, float) if item in (str, float) else dict)
            hint = value_hints.of_list(key, value) if is_item else None
            return self._wrong(key, value, f"a list of {accepted}", hint)
        items = [self.value(one, item, (*key, str(index))) for index, one in enumerate(value)]
        return _WRONG if _WRONG in items else items

    def _dict(self, value: Any, item: Any, key: Key) -> Any:
        if value is None:
            return {}
        if not isinstance(value, dict):
            return self._wrong(key, value, "a mapping", value_hints.of_mapping(key, value))
        items = {name: self.value(one, item, (*key, name)) for name, one in value.items()}
        return _WRONG if _WRONG in items.values() else items

    def _int(self, value: Any, key: Key) -> Any:
        if isinstance(value, str) and WHOLE.fullmatch(value):
            return int(value)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        return self._wrong(key, value, "a whole number", value_hints.of_number(key, value))

    def _float(self, value: Any, key: Key) -> Any:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return float(value)
        return self._wrong(key, value, "a number")

    def _bool(self, value: Any, key: Key) -> Any:
        if isinstance(value, str) and value.lower() in ("true", "false"):
            return value.lower() == "true"
        return value if isinstance(value, bool) else self._wrong(key, value, "true or false")

    def _str(self, value: Any, key: Key) -> Any:
        if isinstance(value, str):
            return value
        written = self.report.mark(key).text
        if isinstance(value, bool):
            text = written or str(value).lower()
            hint = f'YAML reads {text} as a truth value; quote it: "{text}"'
            if key[0] == "recovery" and not value:
                hint = "null is never"
            elif "${" in text:
                hint = f"it is the value of {text}, to be quoted there, or in a text: '--k={text}'"
            return self._wrong(key, value, "a string", hint)
        if isinstance(value, (int, float)):
            is_same = written and plain_value(written) == value and isfinite(value)
            return written if is_same else str(value)
        return self._wrong(key, value, "a string")

    def _wrong(self, key: Key, value: Any, accepted: str, hint: str | None = None) -> Any:
        shown = "" if isinstance(value, (dict, list)) or value is None else f" ({value!r})"
        self.report.at(key, f"found {kind_of(value)}{shown}; accepted is {accepted}", hint)
        return _WRONG

    def _unknown(self, key: Key, value: Any, cls: type) -> None:
        where = f"'{dotted(key[:-1])}'" if len(key) > 1 else "the top level"
        hint = suggest(cls, self.root, key, value)
        if "config" in hints(self.root):  # a profile has none
            hint = hint or value_hints.of_own_value(key, value)
        # What to write is not behind forty names.
        accepted = listing(accepted_keys(cls), _SOME if hint else _ALL)
        self.report.at(key, f"unknown key; {where} accepts {accepted}", hint)


# Stands for a value that did not fit.
_WRONG = object()
WHOLE = re.compile(r"\s*[+-]?[0-9]{1,18}\s*")


def is_union(annotation: Any) -> bool:
    return get_origin(annotation) in (Union, types.UnionType)

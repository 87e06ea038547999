"""The JSON Schema of specs and cluster profiles, for editors and validators of others.

It is weaker than the compiler: what it refuses the compiler refuses, not the other way round.
"""

from __future__ import annotations

import dataclasses
import types
from typing import Any, Literal, get_args, get_origin

from hpcrun.compile import added_keys
from hpcrun.compile.spec import schema
from hpcrun.compile.spec.checks import ADDRESS, AT_LEAST, NOT_IN_PROJECTS
from hpcrun.compile.spec.reference import texts_below
from hpcrun.compile.target import deepspeed_keys, slurm_options
from hpcrun.extensions import RECIPES
from hpcrun.policy import batch, resume
from hpcrun.policy.causes import KINDS
from hpcrun.state.spec.cluster_profile import Profile
from hpcrun.state.spec.experiment import Dependency, Spec
from hpcrun.state.spec.notify_block import EVENTS

DIALECT = "https://json-schema.org/draft/2020-12/schema"
FILES: dict[str, type] = {"spec": Spec, "profile": Profile}

JsonSchema = dict[str, Any]

# A value that is known later: an interpolation, or one that the command line must give.
_LATER: JsonSchema = {"type": "string", "pattern": r"\$\{|^\?\?\?$"}
_NULL: JsonSchema = {"type": "null"}
_KNOWN: JsonSchema = {"not": {"anyOf": [{"$ref": "#/$defs/later"}, _NULL]}}
_OBJECT: JsonSchema = {"type": "object"}
_OWNED = {*slurm_options.OWNED, *slurm_options.OWNED_BY_FIELD}
_SBATCH = slurm_options.SBATCH_OPTIONS - _OWNED
_NOT_EMPTY: JsonSchema = {"type": "object", "minProperties": 1}
_VARIABLE = slurm_options.VARIABLE_NAME.pattern
# In the form of JavaScript, too.
_BACKSLASHED = NOT_IN_PROJECTS.replace("\\", "\\\\")
_OF_RECIPES = ("Recovery.resume", "Resume.recipe")
_N = "[0-9]{1,9}"
_DURATION = f"{_N}-{_N}(?::{_N}){{0,2}}|{_N}(?::{_N}){{0,2}}"
_DURATIONS = ("Resources.time", "Recovery.hang_after", "Recovery.warm_after",
              "Recovery.stop_before")  # fmt: skip
# What the compiler checks beyond a field's type, where JSON Schema can say it.
_CHECKED: dict[str, JsonSchema] = {
    **{f"Resources.{name}": {"pattern": f"^(?:{form.pattern})$"} for name, (form, _) in
       slurm_options.FORMS.items()},
    **{f"Resources.{name}": {"minimum": least, "maximum": most} for name, (least, most) in
       slurm_options.RANGES.items()},
    **{name: {"pattern": rf"^\s*(?:{_DURATION})\s*$"} for name in _DURATIONS},
    "Spec.name": {"pattern": f"^(?:{slurm_options.NAME.pattern})$",
                  "maxLength": slurm_options.LONGEST_NAME},
    "Resources.sbatch": {"propertyNames": {"enum": sorted(_SBATCH)},
                         "additionalProperties": {"not": {"type": ["object", "array"]}}},
    "Environment.variables": {"propertyNames": {"pattern": f"^(?:{_VARIABLE})$"}},
    "Recovery.budgets": {"propertyNames": {"enum": sorted(KINDS)}},
    "Recovery.resume": {"anyOf": [_LATER, {"type": ["object", "null"]}]},
    "Resume.recipe": {"anyOf": [_LATER, _NULL]},
    "Notify.mail_types": {"items": {"anyOf": [{"enum": [*slurm_options.MAIL_TYPES]}, _LATER]}},
    "Notify.events": {"items": {"anyOf": [{"enum": [*EVENTS]}, _LATER]}},
    "Notify.mail": {"pattern": f"^(?:{ADDRESS.pattern})$"},
    "Objective.metric": {"pattern": r"\S"},
    "Wandb.project": {"pattern": f"^[^{_BACKSLASHED}]+$"},
    "Draw.samples": {"minimum": 1},
    "Draw.keys": {"minProperties": 1},
    "When.match": {"minProperties": 1},
    "Block.points": {"items": _NOT_EMPTY},
}  # fmt: skip


def of(file: str) -> JsonSchema:
    """Return the JSON Schema (draft 2020-12) of a kind of file: a key of `FILES`."""
    cls = FILES[file]
    blocks = _Blocks()
    return {
        "$schema": DIALECT,
        "title": f"hpcrun {file}",
        "$ref": blocks.reference(cls),
        "$defs": {**blocks.found, "later": _LATER},
    }


class _Blocks:
    """The schemas of dataclasses by name, each made once, so that a block may hold itself."""

    def __init__(self) -> None:
        self.found: dict[str, JsonSchema] = {}

    def reference(self, cls: type) -> str:
        """Return the reference to a dataclass's schema."""
        # Other packages may have classes of the same name.
        is_own = cls.__module__.startswith("hpcrun.")
        name = cls.__name__ if is_own else f"{cls.__module__}.{cls.__qualname__}"
        if name not in self.found:
            self.found[name] = {}
            self.found[name] = self._block(cls)
        return f"#/$defs/{name}"

    def _block(self, cls: type) -> JsonSchema:
        texts, defaults = texts_below(cls), schema.defaults(cls)
        properties = {}
        for name, annotation in schema.hints(cls).items():
            one = self._field(annotation, _checked(cls, name))
            if cls is Spec and name == "deepspeed":
                one = {"anyOf": [_deepspeed(""), {"$ref": "#/$defs/later"}]}
            if cls is Spec and name == "depends_on":
                one = self._field(list[Dependency | str] | Dependency | str, {})
            properties[name] = {"description": texts.get(name, "").replace("``", "`"), **one}
            if not schema.dataclass_of(annotation):
                properties[name]["default"] = defaults[name]
        for name in added_keys.names(cls):
            properties[name] = self._field(added_keys.annotation(cls, name), {})
        return {**_OBJECT, "properties": properties, "additionalProperties": False}

    def _field(self, annotation: Any, checked: JsonSchema) -> JsonSchema:
        """Return the schema of a field's values, as `schema.SchemaChecker` takes them."""
        if annotation is Any:
            return {}
        options = get_args(annotation) if schema.is_union(annotation) else (annotation,)
        found = [part for option in options for part in self._parts(option)]
        found.append({"$ref": "#/$defs/later"})
        return {"anyOf": found, **({"if": _KNOWN, "then": checked} if checked else {})}

    def _parts(self, annotation: Any) -> list[JsonSchema]:
        if annotation is types.NoneType:
            return [_NULL]
        if dataclasses.is_dataclass(annotation):
            assert isinstance(annotation, type)
            return [{"$ref": self.reference(annotation)}]
        origin = get_origin(annotation)
        if origin is Literal:
            accepted = get_args(annotation)
            return [{"enum": [*accepted, *added_keys.words(accepted)]}]
        if origin is list:
            return [{"type": "array", "items": self._field(get_args(annotation)[0], {})}]
        if origin is dict:
            values = self._field(get_args(annotation)[1], {})
            return [{**_OBJECT, "additionalProperties": values}, _NULL]
        return _SCALARS[annotation]


_TRUE, _FALSE = "[Tt][Rr][Uu][Ee]", "[Ff][Aa][Ll][Ss][Ee]"
_SCALARS: dict[type, list[JsonSchema]] = {
    str: [{"type": ["string", "number"]}],
    float: [{"type": "number"}],
    int: [{"type": "integer"}, {"type": "string", "pattern": f"^(?:{schema.WHOLE.pattern})$"}],
    bool: [{"type": "boolean"}, {"type": "string", "pattern": f"^({_TRUE}|{_FALSE})$"}],
}


def _checked(cls: type, name: str) -> JsonSchema:
    """Return what is checked of a field, wherever its dataclass inherits it from."""
    for one in cls.__mro__:
        if found := _CHECKED.get(key := f"{one.__name__}.{name}"):
            if key in _OF_RECIPES:  # installed ones, too
                return {"anyOf": [{"enum": [*RECIPES.names, resume.NONE]}, *found["anyOf"]]}
            return found
    return {}


def _deepspeed(key: str) -> JsonSchema:
    """Return the schema of one of DeepSpeed's blocks, with what people write as comments."""
    names = deepspeed_keys.BLOCKS[key] if key else deepspeed_keys.TOP_LEVEL
    inside = {name: f"{key}.{name}" if key else name for name in sorted(names)}
    properties: JsonSchema = {
        name: {"if": _OBJECT, "then": _deepspeed(full)} if full in deepspeed_keys.BLOCKS else {}
        for name, full in inside.items()
    }
    if key == "zero_optimization":
        properties["stage"] = {"if": {"type": "number"}, "then": {"enum": [0, 1, 2, 3]}}
    if not key:
        for name in batch.KEYS:
            properties[name] = {"if": {"type": "number"}, "then": {"type": "integer", "minimum": 1}}
    comments: JsonSchema = {r"^(_|//|#)|^[Cc][Oo][Mm][Mm][Ee][Nn][Tt][Ss]?$": {}}
    return {
        **_OBJECT,
        "properties": properties,
        "patternProperties": comments,
        "additionalProperties": False,
    }


for _key, _least in AT_LEAST.items():
    *_block, _name = _key.split(".")
    _cls = schema.dataclass_of(schema.find(Spec, tuple(_block))) if _block else Spec
    assert isinstance(_cls, type)
    _CHECKED.setdefault(f"{_cls.__name__}.{_name}", {"minimum": _least})

"""The forms in which W&B, Optuna, Ray and Hydra sweep a key, and hpcrun's in their place.

A form of hpcrun's is a part of the sweep, ``grid`` or ``random``, and the text to write there.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from hpcrun.compile.sweep.draws import is_number, is_whole, mistake_of, tidy

HYDRA = re.compile(
    r"(choice|range|interval|glob|sort|shuffle|tag|extend_list|"
    r"(?:np\.|numpy\.|torch\.)?(?:linspace|logspace|geomspace|arange))\(.*\)"
    r"|\{[^{}:]+\}"
)
"""The form in which Hydra's sweeper, numpy or a shell takes several values; here it is a text."""

# The ends of numpy's logspace, powers of ten, and how many values.
_POWERS = re.compile(r"\s*(-?\d+)\s*,\s*(-?\d+)\s*,\s*(?:num=)?(\d+)\s*")
_LISTS = ("values", "choices", "choice", "categories")
_LOW, _HIGH, _STEP = ("min", "low"), ("max", "high"), ("q", "step")
# Their distributions of one pair of ends -> ours; those of e to the power of the ends are apart.
_PAIRS = {
    "uniform": "uniform",
    "float": "uniform",
    "q_uniform": "uniform",
    "quniform": "uniform",
    "int_uniform": "int_uniform",
    "int": "int_uniform",
    "randint": "int_uniform",
    "log_uniform": "loguniform",
    "log_uniform_values": "loguniform",
    "q_log_uniform_values": "loguniform",
    "lograndint": "int_loguniform",
    "randn": "normal",
    "gauss": "normal",
}
_OWN = {"uniform", "loguniform", "int_uniform", "int_loguniform", "normal"}
# Steps of a grid that are written out, and that are proposed between two ends.
_MOST_STEPS, _SOME_STEPS = 50, 5

Form = tuple[str, str]


def own_form(given: Any) -> Form | None:
    """Return the part of a sweep and the text to write for a form; None where it has no like."""
    if isinstance(given, list):
        return None if any(isinstance(one, dict) for one in given) else ("grid", form_text(given))
    if isinstance(given, str) and given.startswith("{"):
        return own_form(given[1:-1])
    if isinstance(given, str) and HYDRA.fullmatch(given):
        name, _, inside = given[:-1].partition("(")
        name = name.rpartition(".")[2]
        if name == "logspace" and (found := _POWERS.fullmatch(inside)):
            name, inside = "geomspace", f"1e{found[1]}, 1e{found[2]}, {found[3]}"
        forms: dict[str, Form] = {
            **{one: ("grid", f"{{{one}: [{inside}]}}") for one in ("linspace", "geomspace")},
            "arange": ("grid", f"{{range: [{inside}]}}"),
            "choice": ("grid", f"[{inside}]"),
            "range": ("grid", f"{{range: [{inside}]}}"),
            "interval": ("random", f"{{uniform: [{inside}]}}"),
        }
        return forms.get(name)
    if isinstance(given, str) and (row := row_of(given)):
        return "grid", form_text(row)
    if isinstance(given, str) and "," in given:
        return "grid", f"[{given}]"
    return _of_mapping(given) if isinstance(given, dict) else None


def row_of(text: str) -> list[int]:
    """Return the whole numbers that ``0:5`` (without its end) or ``1-5`` means elsewhere."""
    if not (found := re.fullmatch(r"(\d{1,3})(:|-|\.\.)(\d{1,3})", text)):
        return []
    return list(range(int(found[1]), int(found[3]) + (found[2] != ":")))


def grid_hint(name: str, given: Any) -> str | None:
    """Return what to write for a key of ``grid``, ``zip`` or ``repeat``; None if it is unknown."""
    form = own_form(given)
    if form is None:
        return None
    part, text = form
    if part == "grid":
        return f"write {name}: {text}"
    steps = _steps_of(text)
    return f"{f'write {name}: {steps}, or draw' if steps else 'draw'} it: {whole([(name, form)])}"


def random_hint(name: str, given: Any) -> str | None:
    """Return what to write for a key of ``random.keys``; None if it is unknown."""
    form = own_form(given)
    if form is None or form[1].startswith("{range"):
        return None
    remark = ", both ends included" if "int_" in form[1] else ""
    if isinstance(given, dict) and "probabilities" in given:
        remark = ", all of them equally often"
    return f"write {name}: {form[1]}{remark}"


def whole(forms: list[tuple[str, Form]]) -> str:
    """Return the text of a sweep of keys, each with its form: drawn if one of them is."""
    inside = ", ".join(f"{name}: {text}" for name, (_, text) in forms)
    if any(part == "random" for _, (part, _) in forms):
        return f"sweep: {{random: {{samples: 20, keys: {{{inside}}}}}}}"
    return f"sweep: {{grid: {{{inside}}}}}"


def of_parameters(parameters: Any) -> str | None:
    """Return the text of a sweep for W&B's ``parameters``; None where one of them has no like."""
    found = list(_nested(parameters, "config")) if isinstance(parameters, dict) else []
    forms = [(name, form) for name, form in found if form is not None]
    return whole(forms) if found and len(forms) == len(found) else None


def _nested(parameters: Mapping[str, Any], above: str) -> Iterator[tuple[str, Form | None]]:
    for name, given in parameters.items():
        full = f"{above}.{name}"
        if isinstance(given, dict) and isinstance(given.get("parameters"), dict):
            yield from _nested(given["parameters"], full)
        else:
            yield full, own_form(given) if isinstance(given, dict) else None


def _of_mapping(given: dict[str, Any]) -> Form | None:
    for name in _LISTS:
        if isinstance(given.get(name), list) and given[name]:
            return "grid", form_text(given[name])
    if "value" in given:
        return "grid", form_text([given["value"]])
    if len(given) == 1:
        ((name, bounds),) = given.items()
        own = _PAIRS.get(name, name)
        return _random_form(own, bounds) if own in _OWN else None
    kind = str(given.get("distribution", given.get("type", ""))).lower()
    if kind == "normal":
        return _random_form("normal", [given.get("mu", 0), given.get("sigma", 1)])
    ends = _ends(given)
    if ends is None or (kind and _PAIRS.get(kind, "normal") == "normal"):
        return None
    return _between(kind, *ends, given)


def _random_form(own: str, bounds: Any) -> Form | None:
    return None if mistake_of(own, bounds) else ("random", form_text({own: bounds}))


def _between(kind: str, low: float, high: float, given: dict[str, Any]) -> Form | None:
    """Return the form of a distribution between two ends, in steps where it has them."""
    # W&B's is of the exponents, and whole ends without a distribution are whole numbers.
    if kind == "log_uniform" and "distribution" in given:
        low, high = (tidy(math.exp(min(end, 700)), 6) for end in (low, high))
    are_whole = is_whole(low) and is_whole(high)
    step = _first(given, _STEP) or (1 if kind.startswith("q") else None)
    own = _PAIRS.get(kind, "int_uniform" if are_whole else "uniform")
    if given.get("log") is True:
        own = own.replace("uniform", "loguniform")
    if step == 1 and are_whole:
        own = f"int_{own.removeprefix('int_')}"
    elif step is not None and is_number(step) and step > 0 and "log" not in own:
        if high - low >= step * _MOST_STEPS:
            return None
        count = int((high - low) / step + 1e-9) + 1
        return "grid", form_text([tidy(low + step * at) for at in range(count)])
    elif step is not None:
        return None
    return _random_form(own, [low, high])


def _steps_of(drawn: str) -> str | None:
    """Return some steps of a grid between the ends of a distribution's text."""
    found = re.fullmatch(r"\{(uniform|loguniform): \[(.*)\]\}", drawn)
    spaces = {"uniform": "linspace", "loguniform": "geomspace"}
    return f"{{{spaces[found[1]]}: [{found[2]}, {_SOME_STEPS}]}}" if found else None


def _ends(given: dict[str, Any]) -> tuple[float, float] | None:
    low, high = _first(given, _LOW), _first(given, _HIGH)
    return (low, high) if is_number(low) and is_number(high) and low < high else None


def _first(given: dict[str, Any], names: tuple[str, ...]) -> Any:
    return next((given[name] for name in names if name in given), None)


def form_text(form: Any) -> str:
    """Return a form in YAML: a list, or one pair of a name and a list."""
    if isinstance(form, dict):
        return "".join(f"{{{name}: {json.dumps(inside)}}}" for name, inside in form.items())
    return json.dumps(form, ensure_ascii=False)

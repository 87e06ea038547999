"""What is known of a model: its parameters, and what one step of it holds in memory."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpcrun.errors import UsageError
from hpcrun.fields import FLAG, LIST, TEXT, WHOLE, Kind, Kinds, wrong

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "G": 10**9, "T": 10**12}
_COUNT = re.compile(r"(\d+(?:[\d_,]*\d)?(?:\.\d+)?(?:e\d+)?)\s*([KMBGT]?)", re.IGNORECASE)
_MOST = 10**16
_LONGEST = 40
# What the spec's block `estimate` may say of a model, too.
SHAPE = ("layers", "hidden_size", "heads", "vocabulary", "sequence_length")


@dataclass(frozen=True)
class Peaks:
    """The most bytes that forward and backward hold at once, beside parameters and gradients."""

    first: float
    """Bytes of a micro batch of one sample."""
    more: float
    """Bytes that each further sample adds."""

    def of(self, micro: int) -> float:
        """Return the bytes of a micro batch."""
        return self.first + (micro - 1) * self.more


Pair = tuple[float, float]
"""Bytes of what each rank of a tensor group has whole, and of what the group divides."""


@dataclass(frozen=True)
class FollowedStep:
    """The bytes that lived at once in a step that was followed, with one sample or two."""

    peaks: Sequence[Pair]
    """The peaks: pairs of which none was less than another in both."""
    kept: Pair
    """The bytes that forward leaves for backward."""

    def most(self, tensor: int, in_flight: int) -> float:
        """Return the most bytes on a rank of a tensor group, with so many micro batches begun."""
        more = (in_flight - 1) * (self.kept[0] + self.kept[1] / tensor)
        return more + max(whole + divided / tensor for whole, divided in self.peaks)


@dataclass(frozen=True)
class FollowedModel:
    """A model, or a stage of it, that was followed with one sample and with two."""

    one: FollowedStep
    two: FollowedStep

    def peaks(self, tensor: int = 1, in_flight: int = 1) -> Peaks:
        """Return the peaks of a rank of a tensor group, with so many micro batches begun."""
        first, second = (each.most(tensor, in_flight) for each in (self.one, self.two))
        return Peaks(first, max(0.0, second - first))


@dataclass(frozen=True)
class ModelFacts:
    """A model, counted or given."""

    parameters: int
    """All of them; tied ones once."""
    trainable: int
    source: str
    """Where the count is from, in words."""
    sizes: Sequence[int] = ()
    """Elements of each trainable parameter, in order; empty if only the sum is known."""
    frozen_sizes: Sequence[int] = ()
    divided: Sequence[int] | None = None
    """For each of ``sizes`` 1 where a tensor group divides it, else 0; None if nothing tells."""
    frozen_divided: Sequence[int] = ()
    stages: tuple[ModelFacts, ...] = ()
    """The stages of its pipeline; empty if there is none, or if they are not known."""
    in_flight: int = 1
    """Micro batches that a stage has begun and not ended, at most."""
    muon_parameters: int | None = None
    """Those that DeepSpeed gives to Muon, where that is the optimizer."""
    buffer_bytes: int = 0
    tied: int = 0
    """Names of parameters beyond those that are counted."""
    layers: int | None = None
    hidden_size: int | None = None
    heads: int | None = None
    vocabulary: int | None = None
    sequence_length: int | None = None
    """Tokens of a sample."""
    whole: FollowedModel | None = None
    """What one step holds; None if it was not followed."""
    checkpointed: FollowedModel | None = None
    """The same with activation checkpointing of each block, or of a pipeline's layers."""
    notes: tuple[str, ...] = ()
    """What could not be found out, and what was guessed."""

    @property
    def frozen(self) -> int:
        return self.parameters - self.trainable

    def to_data(self) -> dict[str, Any]:
        """Return plain data without the list of sizes."""
        names = ("parameters", "trainable", "source", "buffer_bytes", "tied", *SHAPE)
        return {name: getattr(self, name) for name in names}


def parameter_count(text: Any, key: str) -> int:
    """Return the number that ``7.5B``, ``350M`` or ``1_000_000`` says; raise UsageError."""
    typed = str(text).strip()
    is_text = not isinstance(text, bool) and len(typed) <= _LONGEST
    match = _COUNT.fullmatch(typed) if is_text else None
    found = 0.0
    if match:
        found = float(match[1].replace("_", "").replace(",", "")) * _UNITS[match[2].upper()]
    if not 1 <= found < _MOST:
        raise UsageError(
            f"{key}: found {str(text)[:80]!r}; accepted is a number of parameters such as 7.5B, "
            "350M or 1500000",
            hint="7.5B are 7.5 thousand million",
        )
    return round(found)


# Of a parameter's elements: an embedding may have more than an index.
_SIZES = Kind(
    "a list of whole numbers",
    lambda value: (
        type(value) is list and all(type(one) is int and 0 <= one < _MOST for one in value)
    ),
)
_ANSWER: Kinds = {
    **dict.fromkeys(("parameters", "trainable", "muon_parameters"), WHOLE),
    **dict.fromkeys(("buffer_bytes", "tied", *SHAPE), WHOLE),
    **dict.fromkeys(("sizes", "frozen_sizes", "divided", "frozen_divided"), _SIZES),
    "stages": LIST,
    "model": TEXT,
    "made_by": TEXT,
    "activations_problem": TEXT,
    "sequence_length_guessed": FLAG,
}


def of_answer(
    data: Mapping[str, Any], given: Mapping[str, Any], *, is_stage: bool = False
) -> ModelFacts:
    """Return the facts in the counting program's answer; ``given`` of the spec's shape wins.

    The answer is that of the user's own code: raise ValueError if it is malformed.
    """
    if problem := wrong(data, _ANSWER, ("parameters", "trainable")):
        raise ValueError(problem)
    if data["parameters"] < 1 and not is_stage:
        raise ValueError("the model has no parameters")
    flags = data.get("divided"), data.get("frozen_divided")
    if flags[0] is not None:
        for own, of in zip(flags, (data.get("sizes"), data.get("frozen_sizes")), strict=True):
            if len(own or ()) != len(of or ()) or not {*(own or ())} <= {0, 1}:
                raise ValueError("divided is not a 0 or 1 for each of sizes")
    stages = [one for one in data.get("stages") or () if isinstance(one, dict)]
    notes = []
    if data.get("sequence_length_guessed") and not given.get("sequence_length"):
        notes.append(
            f"samples are taken to have {data['sequence_length']} tokens; "
            "estimate.sequence_length says otherwise"
        )
    peaks = data.get("peaks")
    if why := data.get("activations_problem"):
        notes.append(f"one step of it was not followed: {why}")
    shape: dict[str, Any] = {name: given.get(name) or data.get(name) for name in SHAPE}
    return ModelFacts(
        data["parameters"],
        data["trainable"],
        source=f"{data.get('model')}, counted on the meta device by {data.get('made_by')}",
        sizes=data.get("sizes") or (),
        frozen_sizes=data.get("frozen_sizes") or (),
        divided=flags[0],
        frozen_divided=flags[1] or (),
        stages=tuple(of_answer(one, {}, is_stage=True) for one in stages),
        muon_parameters=data.get("muon_parameters"),
        buffer_bytes=data.get("buffer_bytes") or 0,
        tied=data.get("tied") or 0,
        whole=_followed(peaks, "whole"),
        checkpointed=_followed(peaks, "checkpointed"),
        notes=tuple(notes),
        **shape,
    )


def of_number(parameters: int, source: str, given: Mapping[str, Any]) -> ModelFacts:
    """Return the facts of a model of which a number was given, and perhaps its shape."""
    shape: dict[str, Any] = {name: given.get(name) for name in SHAPE}
    return ModelFacts(parameters, parameters, source, **shape)


def _followed(data: Any, name: str) -> FollowedModel | None:
    """Return what was followed under a name; None if it was not, or is malformed."""
    try:
        one, two = (
            FollowedStep([_pair(peak) for peak in step["peaks"]], _pair(step["kept"]))
            for step in data[name]
        )
    except (KeyError, TypeError, ValueError):
        return None
    return FollowedModel(one, two) if one.peaks and two.peaks else None


def _pair(data: Any) -> Pair:
    whole, divided = data
    if any(type(one) is not int or not 0 <= one < 2**63 for one in data):
        raise ValueError(f"found {data!r}; accepted are two numbers of bytes")
    return float(whole), float(divided)

"""The ``sweep`` block of a spec."""

from __future__ import annotations

from typing import Any, Literal

from hpcrun.shared_dataclass import field
from hpcrun.state.spec.run_blocks import Objective
from hpcrun.state.spec.spec_dataclass import spec_dataclass


@spec_dataclass
class Draw:
    """Random or quasi-random samples of several keys at once."""

    samples: int = 0
    """How many different points. More of them later keep those that were there."""

    seed: int = 0
    """Another one draws other values."""

    method: Literal["uniform", "halton"] = "uniform"
    """``uniform`` draws each value by itself; ``halton`` is quasi-random (Halton's sequence,
    scrambled), which covers few keys more evenly."""

    keys: dict[str, Any] = field(default_factory=dict)
    """Key -> ``{uniform: [low, high]}``, ``{loguniform: [low, high]}``, ``{int_uniform: [low,
    high]}`` or ``{int_loguniform: [low, high]}`` (both ends included), ``{normal: [mean,
    deviation]}``, a list of values or ``{choices: {label: value}}``."""


@spec_dataclass
class Block:
    """A part of a sweep; ``union`` and ``when`` nest them."""

    grid: dict[str, Any] = field(default_factory=dict)
    """Key -> values; the product in the order written, the last key varying fastest. Values are a
    list, ``{choices: {label: value or sub-tree}}``, ``{range: [start, stop, step]}`` (whole
    numbers, as Python's), ``{linspace: [start, stop, count]}`` or ``{geomspace: [start, stop,
    count]}`` (as numpy's)."""

    zip: dict[str, Any] = field(default_factory=dict)
    """As ``grid``, with lists of one length whose values go together."""

    points: list[dict[str, Any]] = field(default_factory=list)
    """Points written out: each a mapping of keys to values."""

    random: Draw | None = None
    """Points drawn at random, the same ones each time."""

    union: list[Block] = field(default_factory=list)
    """Blocks whose runs come one after the other. What two of them have is one run."""

    when: list[When] = field(default_factory=list)
    """Rules, in their order, for the runs that they match."""

    exclude: list[dict[str, Any]] = field(default_factory=list)
    """Runs to leave out, after the rules: each a mapping of keys to a value or a choice's label, or
    to a list of which one fits."""

    repeat: dict[str, Any] = field(default_factory=dict)
    """As ``grid``, varying fastest of all: seeds, which results average over. A number n is 0 to n
    - 1."""


@spec_dataclass
class When(Block):
    """What is different for some of the runs: further keys that are swept there, and values that
    are set."""

    match: dict[str, Any] = field(default_factory=dict)
    """Which runs: as in ``exclude``. A key that is not swept has the spec's value."""

    set: dict[str, Any] = field(default_factory=dict)
    """Key -> value for these runs: no part of their names. A later rule wins."""


@spec_dataclass
class Population:
    """Population-based training: in a search of sessions, a run that falls behind ends, and each
    later trial goes on from a checkpoint of one of the best, with its values changed."""

    every: int = 0
    """Steps between two looks at the others, at most those left for a trial that begins."""

    share: float = 0.25
    """At each look a run among the worst share, of four runs or more, is ``pruned``; a trial's
    parent is drawn from the best share, by the objective at their newest checkpoints."""

    resample: float = 0.25
    """The probability that a value is drawn anew. Otherwise a number is multiplied by 0.8 or 1.25,
    within its bounds, and of a choice a neighbour is taken."""


@spec_dataclass
class Search:
    """A search in place of a grid: each run asks for its values as it starts, in view of the
    objective of those that have ended. Needs Optuna in the job's Python, but for some samplers: the
    extra ``search``."""

    space: dict[str, Any] = field(default_factory=dict)
    """Key of ``config`` -> ``{uniform: [low, high]}``, ``{loguniform: [low, high]}``, ``{int: [low,
    high]}``, ``{int_loguniform: [low, high]}`` (both ends included), ``{choice: [value, …]}`` or a
    list of values. With ``when: {KEY: value or list}`` beside its bounds, only runs whose KEY, a
    choice or whole number of this space, has such a value have the key; others keep the spec's
    value."""

    trials: int = 0
    """How many runs. More of them later go on with the search."""

    parallel: int | None = None
    """How many of them may run at once; null for as many as the cluster takes."""

    sampler: Literal["tpe", "gp", "cmaes", "random", "qmc", "grid"] = "tpe"
    """``tpe`` and ``gp`` model where good values lie, once ten trials have ended (Optuna's; ``gp``,
    a Gaussian process, needs PyTorch and SciPy, and learns nothing of pruned runs). ``cmaes`` is
    for many trials of numbers. ``random``, ``qmc`` (Halton's sequence) and ``grid`` (lists and
    whole numbers, in their order) look at no values; the last two do without Optuna."""

    seed: int = 0
    """Another one chooses other values."""

    prune: Literal["none", "median", "halving", "hyperband"] = "none"
    """``median`` ends a run whose objective is worse than the median of others, at the furthest
    step that five of them reached; ``halving`` (asynchronous) one that is not among the best third
    at a 27th, a ninth and a third of the steps. ``hyperband`` is the same for half of the runs:
    others, drawn by number, are judged among themselves, from a ninth on, from a third on or
    never. It saves, and is ``pruned``; `hpcrun requeue` has it go on."""

    population: Population | None = None
    """The first ``parallel`` trials are drawn, later ones begin from others. In place of
    ``prune``."""

    more_objectives: list[Objective] = field(default_factory=list)
    """Further objectives beside ``objective``, each with its ``mode``: the sampler looks for runs
    that no other is better than in all (by last values), and ``results`` marks those in a column
    ``pareto``. Without ``prune``."""

    budget: float | None = None
    """GPU-hours, of runs without GPUs CPU-hours, as ``status --cost`` counts them: once they are
    spent no further run begins (those left are cancelled), and those that run go on. A submit with
    a greater one starts the others; null for no end."""

    learn_from: list[str] = field(default_factory=list)
    """Other experiments under the same root (or this one, with a space that it had). The objective
    of their completed runs that were swept over the keys of this space, and lie in it, is told to
    ``tpe`` or ``gp``. They are read as this is submitted."""

    first: list[dict[str, Any]] = field(default_factory=list)
    """Points that are tried first: each a mapping of the keys of ``space`` that it calls for to
    values in it."""


@spec_dataclass
class Sweep(Block):
    """Fans the spec out into runs: the product of its parts, which are ``grid``, ``zip``,
    ``points``, ``random`` and ``union`` in this order."""

    max_parallel: int | None = None
    """How many of the submitted runs may run at once; null for as many as the cluster takes."""

    search: Search | None = None
    """In place of all other parts: values that are chosen as runs start."""

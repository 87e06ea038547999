"""Submission of a spec by a Python program."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hpcrun.api.submitted_experiment import Experiment, tell, told
from hpcrun.errors import UsageError
from hpcrun.host import expand_home
from hpcrun.text import Say


def submit(
    spec: str | os.PathLike[str],
    overrides: Mapping[str, Any] | Sequence[str] = (),
    *,
    sweeps: Mapping[str, Sequence[Any]] | Sequence[str] = (),
    root: str | os.PathLike[str] | None = None,
    new: bool = False,
    check: bool = True,
    yes: bool = False,
    say: Say = tell,
) -> Experiment:
    """Submit every run of a spec that has neither completed nor is on its way, as the command does.

    Parameters
    ----------
    spec
        The spec file, or the name of a spec that the command would find too.
    overrides
        Values by key, such as ``{"config.lr": 1e-3}``, or as typed: ``["config.lr=1e-3"]``.
    sweeps
        Values to sweep by key, ``{"config.lr": [1e-3, 1e-4]}``, or as typed: ``["lr=1e-3,1e-4"]``.
    root
        The directory of experiments; by default ``HPCRUN_ROOT``, or what the cluster profile says.
    new
        Give every run a new number, even if the same run exists.
    check
        Ask the cluster first what it would refuse.
    yes
        Submit although it may cost more hours than the cluster profile lets pass unasked.
    say
        Takes messages for the person; by default they go to standard error.

    Returns
    -------
    Experiment
        The spec's own, without those that it depends on, which are submitted before it.

    Raises
    ------
    SpecError
        The spec is wrong; nothing was submitted.
    UsageError
        It cannot be submitted, or ``yes`` is wanted.
    ClusterRefused, ClusterUnreachable
        Slurm refuses the jobs, or does not answer.
    """
    from hpcrun.compile import compile_chain
    from hpcrun.slurm import patience
    from hpcrun.submission.most_hours import asks_first
    from hpcrun.submission.submit import Request, submit_chain

    typed = [*_typed(overrides, json.dumps)]
    swept = [*_typed(sweeps, lambda values: json.dumps(list(values))[1:-1])]
    named = os.environ.get("HPCRUN_ROOT") if root is None else os.fspath(root)
    place = expand_home(named).absolute() if named else None
    chain = compile_chain(
        os.fspath(spec), typed, swept, root=None if place is None else Path(os.path.realpath(place))
    )
    request = Request(["hpcrun.submit", os.fspath(spec), *typed, *swept], say, new)
    with told(say), patience.acting(say):
        if not yes and (question := asks_first(chain, request)):
            raise UsageError(f"this would {', '.join(question)}", hint="say yes=True")
        if check:
            from hpcrun.check.check import SubmitCheck

            request = replace(request, check=SubmitCheck(say, [*typed, *swept]))
        done = submit_chain(chain, request)
    return Experiment(done[-1].directory, say)


def _typed(
    given: Mapping[str, Any] | Sequence[str], written: Callable[[Any], str]
) -> Iterator[str]:
    """Yield the words that a person would type: JSON is YAML."""
    if isinstance(given, str):
        raise UsageError(
            f"found the text {given!r}; wanted are values by key",
            hint='write {"config.lr": 1e-3} or ["config.lr=1e-3"]',
        )
    if not isinstance(given, Mapping):
        yield from given
        return
    for key, value in given.items():
        try:
            yield f"{key}={written(value)}"
        except (TypeError, ValueError) as error:
            raise UsageError(
                f"the value of {key!r} cannot be written into a spec: {error}",
                hint="give numbers, texts, true, false, None, and lists and dicts of these",
            ) from None

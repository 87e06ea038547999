"""Values that the runs of a search get as they start: what is frozen of their spec until then.

Some points of the space are compiled at submission like those of a grid, which checks all that can
be wrong. What follows from a value is known from the interpolation graph, so that a job completes a
run of its own by plain data, without a look at files or the environment.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from hpcrun.compile.freeze import CompiledRun
from hpcrun.compile.run_template import RunTemplate
from hpcrun.compile.source.marked_tree import Reporter, dotted, get_at
from hpcrun.compile.source.problems import listing
from hpcrun.compile.sweep.late_run import LATE, complete
from hpcrun.compile.sweep.point import Point
from hpcrun.compile.sweep.resolver import Resolver
from hpcrun.compile.sweep.search_space import PLACE, Space
from hpcrun.compile.target import framework_detection
from hpcrun.policy import frameworks
from hpcrun.state.plan import SEARCH
from hpcrun.text import plural, short_ends

# What no test has run a search with.
_REFUSED = (
    "environment.container.image",
    "environment.lock",
    "extendable",
    "roles",
)
# What a search asks for, beside its space and its trials.
_ASKED = ("sampler", "seed", "first", "prune", "budget", "learn_from", "more_objectives")


def freeze(
    runs: Sequence[CompiledRun],
    space: Space,
    block: dict[str, Any],
    resolve: Resolver,
    template_of: Callable[[Point], RunTemplate],
    report: Reporter,
) -> list[CompiledRun]:
    """Return a run for each trial, without values, from the compiled samples of the space."""
    first = runs[0]
    place = (*PLACE, "space")
    if first.spec["objective"] is None:
        hint = "as in objective: {metric: eval/loss, mode: min}"
        report.at(PLACE, "needs the objective that is searched for", hint)
        return []
    metrics = [one["metric"] for one in (first.spec["objective"], *block["more_objectives"])]
    if len({*metrics}) < len(metrics):
        found = f"found {listing(metrics)} with objective.metric"
        report.at((*PLACE, "more_objectives"), found, "name each metric once")
        return []
    if (nodes := resolve.following(space.samples[0])) is None:
        found = "what follows from these keys goes through resolvers, relative or nested ${…}"
        report.at(place, found, "refer to them by plain ${config.NAME}")
        return []
    if refused := [key for key in _REFUSED if get_at(first.spec, tuple(key.split(".")))]:
        found = f"does not go together with {listing(refused)}: that is not tested"
        report.at(PLACE, found, "leave it out, or sweep a grid")
        return []
    total, pattern = first.spec["progress"]["total"], first.spec["progress"]["pattern"]
    known = total or pattern is None or re.search(r"\?P<(total|epochs)>", pattern)
    if block["prune"] != "none" and not known:
        found = "ends no run, as nothing says how many steps there will be"
        report.note((*PLACE, "prune"), found, "add progress.total, or (?P<total>…) to the pattern")
    template = template_of(space.samples[0])
    assert template.located is not None
    if block["population"] is not None and (wrong := _unfit(first, block, template)):
        report.at((*PLACE, "population"), *wrong)
        return []
    located = {k: str(v) if isinstance(v, Path) else v for k, v in asdict(template.located).items()}
    frozen = {
        "space": space.to_data(),
        **{name: block[name] for name in _ASKED},
        "upper": space.upper_bounds(),
        "follows": [node.to_data() for node in nodes],
        "located": located,
        "root": str(template.root),
        "referred": sorted(template.referred),
        "framework": template.framework,
        "recipe": template.recipe,
    }
    base = {dotted(key): one.base for key, one in space.keys.items() if one.when}
    frozen |= {"base": base} if base else {}
    if block["population"] is not None:
        frozen["population"] = {**block["population"], "size": block["parallel"]}
    spec = {**first.spec, SEARCH: json.loads(json.dumps(frozen))}
    if differing := _not_reached(replace(first, spec=spec), runs, space):
        hint = f"only {listing(LATE)} may follow from what is chosen, value by value"
        report.at(place, f"{listing(differing)} would change with these keys", hint)
        return []
    # No program takes these names for values.
    names = short_ends(map(dotted, space.keys))
    shown = complete(replace(first, spec=spec), {name: f"<{names[name]}>" for name in names})
    parts = [[run.identity for run in runs], frozen["space"], base]
    same = json.dumps(parts if base else parts[:-1])
    spec = {**spec, **shown.spec}
    named = f"{plural(block['trials'], 'run')} get values of {listing([*names.values()])}"
    report.note(PLACE, f"{named}, each as it starts")
    return [
        CompiledRun(
            hashlib.sha256(f"{same}{index}".encode()).hexdigest(),
            f"trial {index}",
            {},
            shown.entry,
            spec,
        )
        for index in range(block["trials"])
    ]


def _unfit(
    run: CompiledRun, block: Mapping[str, Any], template: RunTemplate
) -> tuple[str, str] | None:
    """Return why no run can go on from another's checkpoint, and what to do; None if it can."""
    every, saves = block["population"]["every"], run.spec["checkpoint"]["every"]
    if saves is None or saves > every:
        found = f"begins trials from others' checkpoints, and checkpoint.every is {saves or 'null'}"
        return found, f"set checkpoint.every to {every} or less"
    located, recovery = template.located, run.spec["recovery"]
    assert located is not None
    own = recovery["resume"] or recovery["resume_args"] or template.recipe
    own = own or frameworks.of(template.framework).resume
    own = own or framework_detection.unused_checkpoint(located, run.spec, template.directory)
    if own and located.kind != "function":
        found = "takes programs that save through hpcrun.session(), and this one saves by itself"
        return found, "leave population out, and write prune: halving"
    refused = ("parallel", "resources.pack")
    if some := [key for key in refused if get_at(run.spec, tuple(key.split(".")))]:
        return f"does not go together with {listing(some)}: that is not tested", "leave it out"
    return None


def _not_reached(late: CompiledRun, runs: Sequence[CompiledRun], space: Space) -> list[str]:
    """Return the parts of the compiled samples that `complete` does not make of their values."""
    found: dict[str, None] = {}
    for run, sample in zip(runs, space.samples, strict=True):
        point = complete(late, {dotted(one.key): one.value for one in sample})
        spec = {**late.spec, **point.spec}
        found |= dict.fromkeys(name for name in run.spec if run.spec[name] != spec[name])
        found |= {"entry": None} if point.entry != run.entry else {}
    return [*found]

"""Keys that may change without making another run."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hpcrun.compile import Compiled, compile_spec, identity
from hpcrun.compile.freeze import freeze
from hpcrun.errors import SpecError


def _known(project: Any, before: dict[str, Any], after: dict[str, Any]) -> list[int | None]:
    """The number of the earlier run that each run after the change is, if any."""
    plan = freeze(compile_spec(project.write("e.yaml", json.dumps(before))))
    compiled: Compiled = compile_spec(project.write("e.yaml", json.dumps(after)))
    found = identity.earlier_numbers(compiled, [plan])
    return [found.get(run.identity) for run in compiled.runs]


SCRIPT = {
    "entry": "train.py",
    "args": ["--until", "${config.steps}"],
    "config": {"steps": 10, "warmup": "${config.steps}", "lr": 0.1},
    "deepspeed": {
        "train_batch_size": 8,
        "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": "${config.warmup}"}},
    },
    "sweep": {"grid": {"config.lr": [0.1, 0.2]}},
}
COMMAND = {"entry": ["run", "--until=${config.steps}"], "config": {"steps": 10, "lr": 0.1}}


@pytest.mark.parametrize("spec", [SCRIPT, COMMAND], ids=["script", "command"])
@pytest.mark.parametrize("begun_so", [False, True])
def test_what_refers_to_the_key_follows(project: Any, spec: dict[str, Any], begun_so: bool) -> None:
    after = {**spec, "config": {**spec["config"], "steps": 20}, "extendable": ["config.steps"]}
    before = {**spec, "extendable": ["config.steps"] if begun_so else []}
    numbers = [0, 1] if "sweep" in spec else [0]
    assert _known(project, before, after) == numbers
    # Whatever else changes makes another run.
    config = {**after["config"], "more": 1}
    assert _known(project, before, {**after, "config": config}) == [None] * len(numbers)
    del after["extendable"]
    identities = {
        run.identity
        for one in (before, after)
        for run in compile_spec(project.write("e.yaml", json.dumps(one))).runs
    }
    assert len(identities) == 2 * len(numbers)


def test_what_cannot_be_followed_is_told(project: Any) -> None:
    config = {"steps": 10, "twice": "${oc.select:config.steps}", "lr": 0.1}
    text = json.dumps(
        {**SCRIPT, "config": config, "deepspeed": {"train_batch_size": 8}} | {"args": []}
    )
    compile_spec(project.write("e.yaml", text))
    path = project.write("e.yaml", json.dumps({**json.loads(text), "extendable": ["config.steps"]}))
    with pytest.raises(SpecError, match=r"config.twice: .* cannot be followed"):
        compile_spec(path)
    more = {"extendable": ["config.steps", "config.twice"]}
    compile_spec(project.write("e.yaml", json.dumps({**json.loads(text), **more})))


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("resources.nodes", "found 'resources.nodes'; accepted is a full key of config or"),
        ("config", "found 'config'; accepted is a full key"),
        ("config.stepz", "there is no key config.stepz"),
        ("config.lr", "config.lr is swept: each of its values is a run of its own"),
    ],
)
def test_keys_that_cannot_be(project: Any, key: str, message: str) -> None:
    path = project.write("e.yaml", json.dumps({**SCRIPT, "extendable": [key]}))
    with pytest.raises(SpecError) as caught:
        compile_spec(path)
    assert message in str(caught.value)
    assert "extendable.0" in str(caught.value) or "config.stepz" in str(caught.value)

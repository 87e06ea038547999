"""The JSON Schema, shown with a validator that is not ours."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from hpcrun.compile.spec import json_schema
from tests.compile.spec.test_checks import BASE, TABLE, Wrong
from tests.support import away, command

REPOSITORY = Path(__file__).resolve().parents[3]
# Mistakes of the compiler's own table that the schema refuses too.
REFUSED = """
top level key; resources key; cpus; walltime; key at the wrong level; environment key
checkpoint key; recovery key; objective key; code key; sweep key
progress source; progress total; nodes is a word
nodes is no digit of ours; nodes is a float; nodes is null; negative nodes; no nodes
resources is a list; args is a string; config is a string; mode; every is zero; tracker
a tracker's key; a tracker's mode; a tracker that is true; a project with its team
the file is a list; partition form; memory form; exclude form; bad time; no for a string
yes in a list of strings; yes for a variable; a point of nothing; an unknown method
misspelt part of a rule; batch of zero; batch that is a float; DeepSpeed would ignore it
DeepSpeed would ignore it in a block; removed from DeepSpeed; event; type of mail; two addresses
sbatch owned output; sbatch unknown; sbatch underscore; GPU type with a count; name that is a path
name with a newline; partition with a substitution; variable's name; mistake in a profile
"""

# Keys by which a block of a page is known as a profile.
PROFILE = {"executor", "limits", "fabric", "health", "suspects", "prices"}


@pytest.fixture(scope="module", params=["spec", "profile"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def problems(kind: str, text: str | bytes) -> list[str]:
    """What a validator says of a file."""
    schema = json_schema.of(kind)
    found = jsonschema.Draft202012Validator(schema).iter_errors(yaml.safe_load(text))
    return [f"{'.'.join(map(str, one.absolute_path))}: {one.message}" for one in found]


def test_it_is_a_json_schema(kind: str) -> None:
    done = command.hpcrun("schema", kind)
    jsonschema.Draft202012Validator.check_schema(json.loads(done.stdout))
    assert json.loads(done.stdout) == json_schema.of(kind)


def _shipped() -> Iterator[Any]:
    for kind, pattern in (
        ("spec", "configs/experiments/*.yaml"),
        ("spec", "tests/frameworks/specs/*.yaml"),
        ("spec", "tests/compile/golden/specs/*.yaml"),
        ("profile", "configs/clusters/*.yaml"),
        ("profile", "tests/compile/golden/specs/configs/clusters/*.yaml"),
    ):
        for path in sorted(REPOSITORY.glob(pattern)):
            yield pytest.param(kind, path.read_text(), id=path.name)
    for page in (REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md"))):
        for number, block in enumerate(re.findall("```yaml\n(.*?)```", page.read_text(), re.S)):
            if page.name == "extending.md" or away.is_gone(block):
                continue  # of packages: tests/test_extending.py
            known = yaml.safe_load(block)
            name = f"{page.name} {number}"
            yield pytest.param("profile" if PROFILE & known.keys() else "spec", block, id=name)


@pytest.mark.parametrize(("kind", "text"), [*_shipped()])
def test_it_accepts_all_that_ships(kind: str, text: str) -> None:
    assert problems(kind, text) == []


ACCEPTED = """
name: ${oc.env:NAME}
entry: [bash, 7, train.sh]
deepspeed_config: zero2
deepspeed: {train_batch_size: auto, zero_optimization: null, _comment: mine, bf16: {enabled: true}}
config: null
cluster: ???
resources: {nodes: "2", mem: 64gb, time: 90, gpus_per_node: "${config.gpus}", partition: null}
checkpoint: {every: null, keep_best: "${config.best}"}
recovery: {requeue: "False", resume: lightning, warm_after: null, budgets: {hang: 2}}
depends_on: [first.yaml, {spec: second.yaml, when: end}]
sweep: {union: [{grid: {config.lr: [1, 2]}, when: [{match: {config.lr: 1}, set: {config.a: 2}}]}]}
"""


def test_it_accepts_what_is_known_later_and_what_is_converted() -> None:
    assert problems("spec", BASE) == []
    assert problems("spec", ACCEPTED) == []


def _refused() -> list[Any]:
    names = {name for line in REFUSED.strip().splitlines() for name in line.split("; ")}
    found = [pytest.param(case, id=case.id) for case in TABLE if case.id in names]
    assert len(found) == len(names) >= 25
    return found


@pytest.mark.parametrize("case", _refused())
def test_it_refuses_what_the_compiler_refuses(case: Wrong) -> None:
    profiles = [text for name, text in case.files.items() if name.startswith("configs/clusters")]
    found = problems("spec", case.text())
    found += [problem for text in profiles for problem in problems("profile", text)]
    assert found


def test_fields_have_their_text_and_their_default() -> None:
    blocks = json_schema.of("spec")["$defs"]
    nodes = blocks["Resources"]["properties"]["nodes"]
    assert nodes["default"] == 1
    assert "odes" in nodes["description"]
    assert "stage" in json.dumps(blocks["Spec"]["properties"]["deepspeed"])

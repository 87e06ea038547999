"""Keys that installed packages add to the spec: their types are checked as hpcrun's own are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from hpcrun.compile import added_keys, compile_spec
from hpcrun.compile.spec import json_schema, schema
from hpcrun.errors import SpecError
from hpcrun.extensions import FRAMEWORKS, READERS, RECIPES, TRACKERS
from hpcrun.policy import frameworks, resume
from hpcrun.state.spec.experiment import Tracking
from tests.support import added_package

AIM = """
from __future__ import annotations
from dataclasses import dataclass, field

@dataclass
class Settings:
    repository: str = "."
    tags: list[str] = field(default_factory=list)
    every: int | None = None

class AimTracker:
    {methods}
AimTracker.Settings = Settings
"""
METHODS = "def send(self, lines, kept): ...\n    def close(self, ended): ..."


@dataclass
class WithoutDefault:
    name: str


@dataclass
class OfUnknownType:
    name: Gone = None  # type: ignore[name-defined]  # noqa: F821


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    yield from added_package.on_path(tmp_path, monkeypatch)


def install(place: Path, module: str, package: str = "hpcrun_aim") -> None:
    entry = f"aim = {package}:AimTracker"
    added_package.install(place, package, TRACKERS.group, entry, module)


def problems(project: Any, tracking: str) -> str:
    text = f"cluster: local\nentry: [python, x.py]\ntracking: {tracking}\n"
    try:
        compile_spec(project.write("spec.yaml", text))
    except SpecError as error:
        return str(error)
    return ""


def test_a_package_adds_a_tracker(place: Path, project: Any) -> None:
    install(place, AIM.format(methods=METHODS), f"aim_{place.name}")
    assert problems(project, "{aim: {repository: /data, tags: [a], every: 2}}") == ""
    spec = project.write("s.yaml", "cluster: local\nentry: [python, x.py]\ntracking: {aim: {}}\n")
    [run] = compile_spec(spec, ["tracking.aim.every=3"]).runs
    assert run.spec["tracking"]["aim"] == {"repository": ".", "tags": [], "every": 3}
    said = problems(project, "{aim: {repositori: /data, every: often, tags: a}}")
    assert "tracking.aim.repositori: unknown key" in said
    assert "did you mean 'repository'?" in said
    assert "found a string ('often'); accepted is a whole number" in said
    assert "accepted is a list of strings" in said
    assert "did you mean 'aim'?" in problems(project, "{aimm: {}}")


def test_one_without_settings_takes_any(place: Path, project: Any) -> None:
    package = f"plain_{place.name}"
    install(place, AIM.format(methods=METHODS).replace("AimTracker.Settings", "unused"), package)
    assert problems(project, "{aim: {anything: [1, {a: b}]}}") == ""
    assert "accepted is a mapping" in problems(project, "{aim: 3}")


@pytest.mark.parametrize(
    ("module", "said"),
    [
        ("import aim_that_is_not_there\n", "No module named 'aim_that_is_not_there'"),
        (AIM.format(methods="pass"), "has no send and no close"),
        (
            AIM.format(methods=METHODS).replace("str =", "bytes ="),
            "repository: a spec has no value of the type <class 'bytes'>",
        ),
    ],
)
def test_a_package_of_no_use_is_named(place: Path, project: Any, module: str, said: str) -> None:
    package = f"broken_{place.name}"
    install(place, module, package)
    found = problems(project, "{aim: {}}")
    assert said in found
    assert f"the package {package}" in found
    assert "tracking.aim" in found


def test_without_a_package_the_answer_names_hpcruns_own(place: Path, project: Any) -> None:
    said = problems(project, "{tensorbord: true}")
    assert "'tracking' accepts tensorboard, wandb, mlflow" in said
    assert "did you mean 'tensorboard'?" in said


def test_the_schema_of_editors_has_it(place: Path) -> None:
    assert "aim" not in json_schema.of("spec")["$defs"]["Tracking"]["properties"]
    module = AIM.format(methods=METHODS).replace(
        'repository: str = "."', 'repository: str = "."\n    "Where it is."'
    )
    install(place, module, f"shown_{place.name}")
    added_package.forget()
    validator = jsonschema.Draft202012Validator(json_schema.of("spec"))
    assert [*validator.iter_errors({"tracking": {"aim": {"every": 2}}})] == []
    assert [*validator.iter_errors({"tracking": {"aim": {"evry": 2}}})] != []
    assert schema.find(Tracking, ("aim", "every")) == int | None


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (3, "3 is no dataclass"),
        (schema.SchemaChecker, "is no dataclass"),
        (WithoutDefault, "name has no default"),
        (OfUnknownType, "its annotations cannot be read: name 'Gone' is not"),
    ],
)
def test_what_settings_may_be(settings: Any, said: str) -> None:
    assert said in "; ".join(added_keys.problems(settings))


RAY = """
from hpcrun.policy.frameworks import Framework
from hpcrun.policy.resume import Recipe

RAY = Framework("ray", lambda place: {"RAY_RANK": str(place.rank)}, resume="ray-train")
RAY_TRAIN = Recipe("Ray Train", ("ray/*/done",), {"restore": "${hpcrun:newest_directory}"})
"""


def test_a_package_adds_a_framework_and_its_recipe(place: Path, project: Any) -> None:
    package = f"ray_{place.name}"
    added_package.install(place, package, FRAMEWORKS.group, f"ray = {package}:RAY", RAY)
    points = place / f"{package}-1.0.dist-info" / "entry_points.txt"
    with points.open("a") as stream:
        stream.write(f"[{RECIPES.group}]\nray-train = {package}:RAY_TRAIN\n")
    text = "cluster: local\nentry: [python, x.py]\n"
    [run] = compile_spec(project.write("spec.yaml", text + "framework: ray\n")).runs
    assert frameworks.of(run.entry.framework).name == "ray"
    found = resume.of_run(run)
    assert found is not None
    assert found.when == ["ray/*/done"]
    assert resume.recipe_of(run) == "ray-train"
    with pytest.raises(SpecError, match=r"or ray.*did you mean 'ray'"):
        compile_spec(project.write("spec.yaml", text + "framework: rai\n"))
    with pytest.raises(SpecError, match=r"no recipe 'ray-trian'; there .* ray-train, none"):
        compile_spec(project.write("spec.yaml", text + "recovery: {resume: ray-trian}\n"))
    shown = json_schema.of("spec")["$defs"]
    assert "ray" in shown["Spec"]["properties"]["framework"]["anyOf"][0]["enum"]
    assert "ray-train" in str(shown["Recovery"]["properties"]["resume"])


def test_a_recipe_that_cannot_be_loaded_is_told_at_its_key(place: Path, project: Any) -> None:
    package = f"torn_{place.name}"
    added_package.install(place, package, RECIPES.group, f"torn = {package}:TORN", "TORN = 3")
    text = "cluster: local\nentry: [python, x.py]\nrecovery: {resume: torn}\n"
    with pytest.raises(SpecError, match=rf"recovery.resume: .*{package}.* has no when and no con"):
        compile_spec(project.write("spec.yaml", text))


def test_a_package_adds_a_progress_reader(place: Path, project: Any) -> None:
    package = f"read_{place.name}"
    module = (
        "class Reader:\n    @classmethod\n    def begin(cls, start): ...\n"
        "    def poll(self, look): ...\n"
    )
    added_package.install(place, package, READERS.group, f"mine = {package}:Reader", module)
    text = "cluster: local\nentry: [python, x.py]\nprogress: {source: SOURCE}\n"
    [run] = compile_spec(project.write("s.yaml", text.replace("SOURCE", "mine"))).runs
    assert run.progress.source == "mine"
    with pytest.raises(SpecError, match="or lightning or mine"):
        compile_spec(project.write("s.yaml", text.replace("SOURCE", "keras_bar")))

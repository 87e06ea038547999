"""Files, profiles, interpolation and overrides become one spec."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpcrun.compile import compile_spec
from hpcrun.compile.source.problems import Problems
from hpcrun.compile.source.yaml_reader import parse_value, read_yaml
from hpcrun.errors import SpecError

BASE = "cluster: local\nentry: train:main\n"


def spec_of(project: Any, text: str, *overrides: str) -> dict[str, Any]:
    path = project.write("spec.yaml", BASE + text)
    found: dict[str, Any] = compile_spec(path, overrides).runs[0].spec
    return found


def test_numbers_and_strings_are_what_they_look_like(project: Any) -> None:
    text = (
        "config: {a: 3e-4, b: 1_000, c: 2024-01-01, d: 1e5, e: .5, f: yes, g: ~, h: 0x10, i: '1'}"
    )
    assert spec_of(project, text)["config"] == {
        "a": 3e-4,
        "b": 1000,
        "c": "2024-01-01",
        "d": 1e5,
        "e": 0.5,
        "f": True,
        "g": None,
        "h": 16,
        "i": "1",
    }


def test_a_number_where_text_is_wanted_is_the_text_that_was_written(project: Any) -> None:
    written = ["017", "08", "0x1F", "0b11", "1_000", "1.10", "1e3", "+5"]
    variables = ", ".join(f"V{at}: {one}" for at, one in enumerate([*written, ".inf"]))
    text = f"resources: {{account: 0123}}\nenvironment: {{variables: {{{variables}}}}}\n"
    found = spec_of(project, text, "tags=[007, 1.10]", "notes=010")
    assert found["resources"]["account"] == "0123"
    assert [*found["environment"]["variables"].values()] == [*written, "inf"]
    assert (found["tags"], found["notes"]) == (["007", "1.10"], "010")
    path = project.write("spec.yaml", BASE + "environment: {variables: {A: x}}\n")
    for values in ("A=017,1.10", "A={choices: {a: 017, b: 1.10}}"):
        runs = compile_spec(path, sweeps=[f"environment.variables.{values}"]).runs
        assert [one.spec["environment"]["variables"]["A"] for one in runs] == ["017", "1.10"]
    key = "environment.variables.A"
    for sweep, tags in (
        (f"{{grid: {{{key}: [017], tags: [[010, 1.10]]}}}}", ["010", "1.10"]),
        (f"{{points: [{{{key}: 017, tags: [010, 1.10]}}]}}", ["010", "1.10"]),
        (f"{{random: {{samples: 1, keys: {{{key}: [017]}}}}}}", []),
    ):
        path = project.write(
            "spec.yaml", f"{BASE}environment: {{variables: {{A: x}}}}\nsweep: {sweep}\n"
        )
        (run,) = compile_spec(path).runs
        assert (run.spec["environment"]["variables"], run.spec["tags"]) == ({"A": "017"}, tags)


def test_yaml_merge_keys_and_anchors_work(project: Any) -> None:
    text = "config:\n  base: &b {x: 1, y: 2}\n  other: {<<: *b, y: 3}\n"
    assert spec_of(project, text)["config"]["other"] == {"x": 1, "y": 3}


def test_later_files_win_and_this_file_over_all(project: Any) -> None:
    project.write("a.yaml", "name: a\nconfig: {x: a, y: a, z: a}\nargs: []\n")
    project.write("b.yaml", "config: {y: b, z: b}\n")
    found = spec_of(project, "extends: [a.yaml, b.yaml]\nconfig: {z: c}\n")
    assert found["config"] == {"x": "a", "y": "b", "z": "c"}
    assert found["name"] == "spec"


def test_a_profile_s_resources_are_defaults(project: Any) -> None:
    profile = "resources: {partition: gpu, time: '02:00:00', cpus_per_task: 4}\n"
    project.write("configs/clusters/mine.yaml", profile)
    found = spec_of(
        project,
        "cluster: mine\nresources: {cpus_per_task: 8}\n".replace("cluster: mine\n", ""),
        "cluster=mine",
    )
    resources = found["resources"]
    assert (resources["partition"], resources["time"]) == ("gpu", "02:00:00")
    assert resources["cpus_per_task"] == 8
    assert found["cluster"] == "mine"


def test_profiles_are_found_in_order(project: Any, monkeypatch: Any, tmp_path: Path) -> None:
    home = tmp_path / "home/.config/hpcrun/clusters/site.yaml"
    home.parent.mkdir(parents=True)
    home.write_text("resources: {partition: home}\n")
    assert spec_of(project, "", "cluster=site")["resources"]["partition"] == "home"
    named = tmp_path / "named"
    named.mkdir()
    (named / "site.yaml").write_text("resources: {partition: named}\n")
    monkeypatch.setenv("HPCRUN_CLUSTERS", str(named))
    assert spec_of(project, "", "cluster=site")["resources"]["partition"] == "named"
    project.write("configs/clusters/site.yaml", "resources: {partition: beside}\n")
    assert spec_of(project, "", "cluster=site")["resources"]["partition"] == "beside"


def test_a_directory_of_profiles_that_is_not_there_is_told(
    project: Any, hpcrun: Any, monkeypatch: Any, tmp_path: Path
) -> None:
    monkeypatch.setenv("HPCRUN_CLUSTERS", str(tmp_path / "gone"))
    project.write("spec.yaml", "entry: train.py\n")
    said = hpcrun("plan", "spec.yaml", "cluster=site").err
    assert f"HPCRUN_CLUSTERS names {tmp_path / 'gone'}, and there is no such directory" in said


def test_the_default_cluster_is_slurm_where_there_is_an_sbatch(
    project: Any, monkeypatch: Any, tmp_path: Path
) -> None:
    path = project.write("spec.yaml", "entry: train.py\n")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert compile_spec(path).cluster["name"] == "local"
    sbatch = tmp_path / "sbatch"
    sbatch.write_text("#!/bin/sh\n")
    sbatch.chmod(0o755)
    assert compile_spec(path).cluster["name"] == "slurm"


def test_interpolation_sees_defaults_profile_and_deepspeed_file(
    project: Any, monkeypatch: Any
) -> None:
    monkeypatch.setenv("WHO", "8")
    project.write("configs/clusters/mine.yaml", "resources: {partition: gpu}\n")
    text = (
        "deepspeed_config: ds.json\ndeepspeed: {train_batch_size: 8}\n"
        "resources: {nodes: '${oc.env:WHO}'}\n"
        "config: {n: '${resources.nodes}', p: '${resources.partition}', k: '${checkpoint.keep}', "
        "s: '${deepspeed.zero_optimization.stage}', d: '${hpcrun:directory}/x', e: '${config.d}/y',"
        " literal: '\\${x}'}\n"
    )
    found = spec_of(project, text, "cluster=mine")
    assert found["resources"]["nodes"] == 8
    assert found["config"] == {
        "n": "8",
        "p": "gpu",
        "k": 2,
        "s": 2,
        "d": "${hpcrun:directory}/x",
        "e": "${hpcrun:directory}/x/y",
        "literal": "${x}",
    }


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3e-4", 3e-4),
        ("a,b", "a,b"),
        ("12:00:00", "12:00:00"),
        ("null", None),
        ("true", True),
        ("", ""),
        ("[1, 2]", [1, 2]),
        ("{a: 1, b: x}", {"a": 1, "b": "x"}),
        ('"1"', "1"),
        ("Hello: world # no comment", "Hello: world # no comment"),
        ("a=b", "a=b"),
        ("-1", -1),
    ],
)
def test_values_on_the_command_line(text: str, value: object, tmp_path: Path) -> None:
    problems = Problems()
    found = parse_value(text, "config.x", tmp_path, problems)
    assert found is not None
    assert not problems
    assert found.data["value"] == value


def test_overrides(project: Any) -> None:
    text = "config: {a: 1, b: {c: 2, d: 3}}\ndeepspeed_config: ds.json\n"
    found = spec_of(
        project,
        text,
        "config.a=x,y",
        "config.b={c: 5}",
        "+config.new.deep=1",
        "config.new.deep=2",
        "resources.time=12:00:00",
        "environment.python=/p/python",
        "deepspeed.zero_optimization.stage=3",
        "deepspeed.gradient_clipping=null",
        "deepspeed.train_batch_size=4",
        "+environment.variables.A=1",
        "objective={metric: loss}",
    )
    assert found["config"] == {"a": "x,y", "b": {"c": 5, "d": 3}, "new": {"deep": 2}}
    assert found["resources"]["time"] == "12:00:00"
    assert found["deepspeed"]["zero_optimization"] == {"stage": 3}
    assert "gradient_clipping" not in found["deepspeed"]
    assert found["environment"]["variables"] == {"A": "1"}
    assert found["objective"] == {"metric": "loss", "mode": "min"}


def test_an_empty_block_says_nothing(project: Any) -> None:
    found = spec_of(project, "resources:\nconfig:\ndeepspeed:\nenvironment:\n")
    assert (found["resources"]["nodes"], found["config"], found["deepspeed"]) == (1, {}, {})


def test_numbers_in_string_fields_keep_how_they_were_written(project: Any) -> None:
    text = "resources: {mem: 4000}\nenvironment: {variables: {A: 1e-5, B: 0.10, C: 007}}\n"
    found = spec_of(project, text)
    assert found["resources"]["mem"] == "4000"
    assert found["environment"]["variables"] == {"A": "1e-5", "B": "0.10", "C": "007"}


def test_an_environment_value_is_never_in_a_message(project: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("MY_SECRET", "hunter2")
    with pytest.raises(SpecError) as error:
        spec_of(
            project, "config: {a: '${oc.env:MY_SECRETT}', b: '${oc.env:MY_SECRET}'}\nnodes: 1\n"
        )
    assert "hunter2" not in str(error.value)


def test_marks_know_file_and_line(project: Any) -> None:
    path = project.write("x.yaml", "a: 1\nb:\n  c: [1,\n    2]\n")
    tree = read_yaml(path, "x.yaml", Problems())
    assert tree is not None
    assert [tree.mark(key).line for key in [("a",), ("b",), ("b", "c"), ("b", "c", "1")]] == [
        1,
        2,
        3,
        4,
    ]


def test_what_has_the_name_of_an_experiment_that_ships_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert compile_spec("hello", ["cluster=local"]).notes == ()
    Path("hello").mkdir()
    for name in ("hello.yaml", "hello/first.yaml"):
        Path(name).write_text(BASE)
    [note] = compile_spec("hello", ["cluster=local"]).notes
    assert note == (
        "hello is the experiment of this name that ships with hpcrun; for your own, type "
        "hello.yaml, hello/first.yaml"
    )


def test_a_file_that_has_the_name_of_an_experiment_that_ships_is_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("hello").write_text("cluster: local\nentry: ['true']\n")
    assert compile_spec("hello").runs[0].entry.argv == ("true",)
    Path("hello").write_bytes(b"\x7fELF")
    with pytest.raises(SpecError) as raised:
        compile_spec("hello")
    assert str(raised.value).startswith("./hello:1: ")

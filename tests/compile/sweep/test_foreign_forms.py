"""What W&B, Optuna, Ray and Hydra write for a swept key, and hpcrun's form, which is accepted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from hpcrun.compile import compile_spec
from hpcrun.compile.sweep import foreign_forms

TABLE: list[tuple[Any, str, str]] = [
    ({"values": [16, 32]}, "grid", "[16, 32]"),
    ({"distribution": "categorical", "values": ["a", "b"]}, "grid", '["a", "b"]'),
    ({"value": 3}, "grid", "[3]"),
    ({"choices": [1, 2]}, "grid", "[1, 2]"),
    ("0.1,0.2", "grid", "[0.1,0.2]"),
    ("choice(1,2)", "grid", "[1,2]"),
    ("range(1,5)", "grid", "{range: [1,5]}"),
    ("interval(0,1)", "random", "{uniform: [0,1]}"),
    ({"min": 0.1, "max": 1}, "random", "{uniform: [0.1, 1]}"),
    ({"min": 1, "max": 8}, "random", "{int_uniform: [1, 8]}"),
    ({"distribution": "uniform", "min": 0, "max": 1}, "random", "{uniform: [0, 1]}"),
    ({"distribution": "int_uniform", "min": 1, "max": 8}, "random", "{int_uniform: [1, 8]}"),
    ({"distribution": "log_uniform_values", "min": 0.001, "max": 0.1}, "random",
     "{loguniform: [0.001, 0.1]}"),
    ({"distribution": "log_uniform", "min": 0, "max": 1}, "random", "{loguniform: [1.0, 2.71828]}"),
    ({"distribution": "q_uniform", "min": 0, "max": 1, "q": 0.5}, "grid", "[0.0, 0.5, 1.0]"),
    ({"distribution": "q_uniform", "min": 0, "max": 9}, "random", "{int_uniform: [0, 9]}"),
    ({"distribution": "q_log_uniform_values", "min": 1, "max": 64}, "random",
     "{int_loguniform: [1, 64]}"),
    ({"distribution": "normal", "mu": 0, "sigma": 2}, "random", "{normal: [0, 2]}"),
    ({"type": "int", "low": 1, "high": 64, "log": True}, "random", "{int_loguniform: [1, 64]}"),
    ({"type": "float", "low": 0.001, "high": 1, "log": True}, "random", "{loguniform: [0.001, 1]}"),
    ({"log_uniform": [0.1, 1]}, "random", "{loguniform: [0.1, 1]}"),
    ({"randint": [1, 8]}, "random", "{int_uniform: [1, 8]}"),
]  # fmt: skip
# What has no like, or is wrong there too.
NONE: list[Any] = [
    {"distribution": "beta", "min": 0, "max": 1},
    {"distribution": "log_normal", "mu": 0},
    {"distribution": "log_uniform_values", "min": 0, "max": 1},
    {"distribution": "log_uniform", "min": 1e6, "max": 1e9},
    {"distribution": "int_uniform", "min": 0.5, "max": 2},
    {"distribution": "gauss", "min": 0, "max": 1},
    {"min": 8, "max": 1},
    {"min": True, "max": 2},
    {"min": 0, "max": 1e300, "q": 1e-300},
    {"min": 0, "max": 1, "q": "x"},
    {"uniform": [1, 2, 3]},
    {1: [1, 2]},
    [{"a": 1}],
    "glob(*)",
    "word",
    3,
    None,
    {},
]


@pytest.mark.parametrize(("given", "part", "text"), TABLE)
def test_a_form_of_others_is_written_and_accepted(
    given: Any, part: str, text: str, tmp_path: Path
) -> None:
    form = foreign_forms.own_form(given)
    assert form == (part, text)
    swept = yaml.safe_load(foreign_forms.whole([("config.x", form)]))
    (tmp_path / "train.py").write_text("")
    spec = {"entry": "train.py", "cluster": "local", "config": {"x": 1}, **swept}
    (tmp_path / "e.yaml").write_text(yaml.safe_dump(spec))
    assert compile_spec(tmp_path / "e.yaml", root=tmp_path / "root").runs


@pytest.mark.parametrize("given", NONE)
def test_nothing_is_told_of_what_has_no_like(given: Any) -> None:
    assert foreign_forms.own_form(given) is None
    assert foreign_forms.grid_hint("x", given) is None
    assert foreign_forms.random_hint("x", given) is None


def test_parameters_of_wandb_become_one_sweep() -> None:
    listed = {"lr": {"values": [1]}, "opt": {"parameters": {"wd": {"values": [0, 1]}}}}
    drawn = {**listed, "x": {"min": 0.5, "max": 1}}
    grid = "sweep: {grid: {config.lr: [1], config.opt.wd: [0, 1]}}"
    random = "sweep: {random: {samples: 20, keys: {config.lr: [1], config.opt.wd: [0, 1], "
    assert foreign_forms.of_parameters(listed) == grid
    assert foreign_forms.of_parameters(drawn) == f"{random}config.x: {{uniform: [0.5, 1]}}}}}}}}"
    for other in ({}, None, {"lr": 0.1}, {**drawn, "y": {"distribution": "beta"}}):
        assert foreign_forms.of_parameters(other) is None

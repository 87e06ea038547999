"""The suites for frameworks and recipes: hpcrun's own pass them, and what is wrong is named."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hpcrun.extensions import FRAMEWORKS, RECIPES
from hpcrun.policy.frameworks import JAX, Framework
from hpcrun.policy.resume import NANOGPT, Recipe
from hpcrun.testing import check_framework, check_resume_recipe

# Recipe -> the program's arguments, and a file that it saves.
SAVED = {
    "accelerate": ((), "step_3/random_states_0.pkl"),
    "deepspeed-checkpoint": (("--checkpoint_dir", "ck"), "ck/run/latest"),
    "hf-trainer": (("--output-dir=out",), "out/checkpoint-3/trainer_state.json"),
    "imagenet": ((), "checkpoint.pth.tar"),
    "lightning": ((), "lightning_logs/version_0/checkpoints/last.ckpt"),
    "nanogpt": ((), "out-shakespeare/ckpt.pt"),
}


@pytest.mark.parametrize("name", FRAMEWORKS.own)
def test_own_frameworks(name: str) -> None:
    found = FRAMEWORKS.load(name)
    check_framework(found)
    assert found.name == name


@pytest.mark.parametrize("name", RECIPES.own)
def test_own_recipes(name: str) -> None:
    argv, saved = SAVED[name]
    check_resume_recipe(RECIPES.load(name), argv, [saved])


@pytest.mark.parametrize(
    ("framework", "said"),
    [
        ("jax", "'jax' is no Framework"),
        (replace(JAX, variables=lambda place: {"RANKS": 3}), "expected is a dictionary of texts"),
        (replace(JAX, variables=lambda place: place.ports[0]), r"variables\(.*raises IndexError"),
        (replace(JAX, arguments=lambda place: "--rank"), "expected is a list of texts"),
        (replace(JAX, hidden={"RANK"}), "expected is a frozenset of names of variables"),
        (replace(JAX, hidden=frozenset({"A B"})), "expected is a frozenset of names of variables"),
        (Framework("x", one_per_node=True, one_per_run=True), "are both True"),
        (Framework("x", progress="tensorbord"), "progress is 'tensorbord'; expected is auto"),
        (Framework("x", resume="nanogtp"), "resume is 'nanogtp'; expected is None or a recipe"),
    ],
)
def test_what_is_wrong_with_a_framework_is_said(framework: Any, said: str) -> None:
    with pytest.raises(AssertionError, match=said):
        check_framework(framework)


@pytest.mark.parametrize(
    ("recipe", "said"),
    [
        ("nanogpt", "'nanogpt' is no Recipe"),
        (replace(NANOGPT, when="ckpt.pt"), "when is 'ckpt.pt'; expected is a tuple"),
        (replace(NANOGPT, when=("{dir}/x",)), r"has \['dir'\], which is no key of options"),
        (replace(NANOGPT, config={}), "expected are the flags by which the program resumes"),
        (replace(NANOGPT, config={"--resume": "x"}), "expected is its name, without dashes"),
        (
            replace(NANOGPT, config={"resume": "${hpcrun:last}"}),
            r"config has \$\{hpcrun:last\}",
        ),
        (Recipe("", ("{out}/x",), {"a": 1}, {"out": None}), r"lacks the option out"),
        (replace(NANOGPT, when=("{out_dir}/*.pth",)), r"none of \['out/ckpt.pt'\] is matched by"),
    ],
)
def test_what_is_wrong_with_a_recipe_is_said(recipe: Any, said: str) -> None:
    with pytest.raises(AssertionError, match=said):
        check_resume_recipe(recipe, (), ["out/ckpt.pt"])

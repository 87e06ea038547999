"""Recipes: which patterns and flags follow from a spec and a program's own options."""

from __future__ import annotations

from typing import Any

import pytest

from hpcrun.extensions import FRAMEWORKS, RECIPES
from hpcrun.policy import frameworks, resume
from hpcrun.state.spec.recovery_block import Resume

DIRECTORY = "${hpcrun:newest_directory}"
HF = {"resume_from_checkpoint": DIRECTORY}
TRAINER = "checkpoint-*/trainer_state.json"


@pytest.mark.parametrize(
    ("recovery", "argv", "expected"),
    [
        ({}, (), None),
        ({"resume": None, "resume_args": []}, (), None),
        ({"resume_args": ["--resume"]}, (), Resume(args=["--resume"])),
        ({"resume": "none"}, (), None),
        ({"resume": "hf-trainer"}, (), Resume(when=[f"trainer_output/{TRAINER}"], config=HF)),
        (
            {"resume": "hf-trainer"},
            ("--output_dir=old", "--output_dir=a/b"),
            Resume(when=[f"a/b/{TRAINER}"], config=HF),
        ),
        (
            {"resume": "hf-trainer"},
            ("train.py", "--output-dir", "/x/[1]", "--lr"),
            Resume(when=[f"/x/[[]1]/{TRAINER}"], config=HF),
        ),
        (
            {"resume": {"recipe": "hf-trainer", "args": ["--again"], "config": {}}},
            ("output_dir=o",),
            Resume(when=[f"o/{TRAINER}"], args=["--again"]),
        ),
        (
            {"resume": "nanogpt"},
            ("config/train_shakespeare_char.py",),
            Resume(when=["out*/ckpt.pt"], config={"init_from": "resume"}),
        ),
        (
            {"resume": {"recipe": "nanogpt", "when": "gpt/*.pt"}},
            (),
            Resume(when=["gpt/*.pt"], config={"init_from": "resume"}),
        ),
        (
            {"resume": {"when": ["a", "b"], "instead": [], "config": {"x": None}}},
            (),
            Resume(when=["a", "b"], instead=[], config={"x": None}),
        ),
        (
            {"resume": "deepspeed-checkpoint"},
            ("--checkpoint_dir=ck",),
            Resume(
                when=["ck/latest", "ck/*/latest"],
                config={"checkpoint_dir": None, "load_checkpoint_dir": DIRECTORY},
            ),
        ),
    ],
)
def test_how_a_program_resumes(
    recovery: dict[str, Any], argv: tuple[str, ...], expected: Resume | None
) -> None:
    assert resume.of(recovery, None, argv) == expected


def test_a_framework_that_is_named_has_a_recipe() -> None:
    found = resume.of({}, "huggingface", ("--output_dir=out",))
    assert found == Resume(when=[f"out/{TRAINER}"], config=HF)
    assert resume.of({"resume": "none"}, "huggingface", ()) is None
    assert resume.of({"resume_args": ["-r"]}, "huggingface", ()) == Resume(args=["-r"])
    assert resume.of({}, "auto", ()) is None


def test_a_default_recipe_does_not_reach_programs_that_it_does_not_fit() -> None:
    assert resume.of({}, "deepspeed", ("--lr=1",)) is None
    assert resume.of({}, "deepspeed", ("--checkpoint_dir", "ck")) is not None
    assert resume.missing("deepspeed-checkpoint", ("--checkpoint_dir", "--lr")) == "checkpoint_dir"


def test_frameworks_name_recipes_that_there_are() -> None:
    named = {frameworks.of(name).resume for name in FRAMEWORKS.own} - {None}
    assert named
    assert named <= {*RECIPES.own}

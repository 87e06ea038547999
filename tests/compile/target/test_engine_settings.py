"""``precision``: the keys that it fills in, and what has no units for it."""

from __future__ import annotations

from typing import Any

import pytest

from hpcrun.compile import compile_spec
from hpcrun.errors import SpecError

BATCH = "deepspeed: {train_batch_size: 8}\n"
GPUS = "resources: {gpus_per_node: 4}\n"
BASE = "cluster: local\nentry: train.py\n"


def _compiled(project: Any, text: str, *overrides: str) -> dict[str, Any]:
    spec = compile_spec(project.write("spec.yaml", BASE + text), overrides).runs[0].spec
    return {key: value for key, value in spec["deepspeed"].items() if isinstance(value, dict)}


def _refused(project: Any, text: str, *overrides: str) -> str:
    with pytest.raises(SpecError) as caught:
        _compiled(project, text, *overrides)
    return str(caught.value)


@pytest.mark.parametrize(
    ("precision", "gpus", "filled"),
    [
        ("auto", GPUS, {}),
        ("fp32", GPUS, {}),
        ("tf32", GPUS, {}),
        ("bf16", GPUS, {"bf16": {"enabled": True}}),
        ("fp8", GPUS, {"bf16": {"enabled": True}}),
        ("fp16", GPUS, {"fp16": {"enabled": True}}),
        ("bf16", "", {"bf16": {"enabled": True}}),
        ("fp16", "", {"torch_autocast": {"enabled": True, "dtype": "float16"}}),
    ],
)
def test_it_fills_in_deepspeed_s_keys(
    project: Any, precision: str, gpus: str, filled: dict[str, Any]
) -> None:
    assert _compiled(project, BATCH + gpus, f"precision={precision}") == filled


def test_what_agrees_stays_as_it_is(project: Any) -> None:
    scaled = "deepspeed: {train_batch_size: 8, fp16: {initial_scale_power: 8}}\n"
    found = _compiled(project, scaled + GPUS, "precision=fp16")
    assert found == {"fp16": {"enabled": True, "initial_scale_power": 8}}
    autocast = "deepspeed: {train_batch_size: 8, torch_autocast: {enabled: true}}\n"
    assert _compiled(project, autocast, "precision=bf16") == {"torch_autocast": {"enabled": True}}


@pytest.mark.parametrize(
    ("precision", "block", "found"),
    [
        ("fp32", "bf16: {enabled: true}", "found fp32, and deepspeed.bf16.enabled is bf16"),
        ("tf32", "fp16: {enabled: true}", "found tf32, and deepspeed.fp16.enabled is fp16"),
        ("fp16", "bf16: {enabled: true}", "found fp16, and deepspeed.bf16.enabled is bf16"),
        (
            "bf16",
            "torch_autocast: {enabled: true, dtype: float16}",
            "found bf16, and deepspeed.torch_autocast.enabled is fp16",
        ),
    ],
)
def test_what_says_something_else_is_refused(
    project: Any, precision: str, block: str, found: str
) -> None:
    text = f"deepspeed: {{train_batch_size: 8, {block}}}\n" + GPUS
    assert found in _refused(project, text, f"precision={precision}")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (BATCH + "precision: tf32\n", "processors have none (gpus_per_node is 0)"),
        (BATCH + "precision: fp8\n", "processors have none (gpus_per_node is 0)"),
        ("precision: bf16\n", "there is no DeepSpeed configuration that says it"),
        (BATCH + "precision: bf16\nframework: lightning\n", "from the program's own flags"),
    ],
)
def test_where_it_cannot_be_it_is_refused(project: Any, text: str, found: str) -> None:
    assert found in _refused(project, text)


@pytest.mark.parametrize(
    ("kind", "precision", "found"),
    [
        ("v100", "bf16", "found bf16, and v100-32gb (resources.gpu_type) computes in none"),
        ("v100", "fp16", None),
        ("t4", "tf32", "found tf32, and t4"),
        ("a100", "tf32", None),
        ("a100", "fp8", "found fp8, and a100-40gb"),
        ("h100", "fp8", None),
        ("l40s", "fp8", None),
        ("of-another-maker", "fp8", None),
    ],
)
def test_a_type_of_gpu_has_to_have_it(
    project: Any, kind: str, precision: str, found: str | None
) -> None:
    overrides = (f"resources.gpu_type={kind}", f"precision={precision}")
    if found is None:
        assert isinstance(_compiled(project, BATCH + GPUS, *overrides), dict)
    else:
        assert found in _refused(project, BATCH + GPUS, *overrides)


def test_deepspeed_s_own_keys_are_judged_alike(project: Any) -> None:
    text = "deepspeed: {train_batch_size: 8, bf16: {enabled: true}}\n" + GPUS
    said = _refused(project, text, "resources.gpu_type=t4")
    assert "deepspeed.bf16.enabled" in said
    assert "use fp16" in said


def test_another_precision_is_another_run(project: Any) -> None:
    path = project.write("spec.yaml", BASE + BATCH + GPUS)
    found = [
        compile_spec(path, [f"precision={one}"]).runs[0].identity
        for one in ("auto", "fp32", "tf32", "bf16", "fp8")
    ]
    assert len(set(found)) == 5
    assert compile_spec(path).runs[0].identity == found[0]

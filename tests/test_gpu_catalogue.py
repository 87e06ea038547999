from __future__ import annotations

import re
from pathlib import Path

import pytest

from hpcrun import gpu_catalogue
from hpcrun.errors import UsageError
from hpcrun.gpu_catalogue import GPUS


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("h100", "h100"),
        ("NVIDIA H100", "h100"),
        ("nvidia_h100_pcie", "h100-pcie"),
        ("A100-SXM4-80GB", "a100-80gb"),
        ("a100", "a100-40gb"),
        ("v100", "v100-32gb"),
        ("MI250X", "mi250x"),
        ("rtx 4090", "rtx-4090"),
    ],
)
def test_names_that_clusters_use(name: str, found: str) -> None:
    assert gpu_catalogue.find(name).name == found


def test_an_unknown_name_is_an_error_with_suggestions() -> None:
    with pytest.raises(UsageError, match=r"--gpu: there is no GPU 'h10'.*there are v100") as error:
        gpu_catalogue.find("h10")
    assert "h100" in str(error.value.hint)
    with pytest.raises(UsageError, match=r"resources\.gpu_type") as error:
        gpu_catalogue.find("zzz", "resources.gpu_type")
    assert error.value.hint == "give the nearest of these by --gpu"


def test_the_catalogue_is_plausible() -> None:
    """Names and other names are unique; newer kinds of numbers are faster, half before fp8."""
    names = [name for gpu in GPUS for name in (gpu.name, *gpu.other_names)]
    assert len(names) == len(set(names))
    for gpu in GPUS:
        assert 8 <= gpu.memory_gb <= 300
        assert 100 <= gpu.bandwidth_gb <= 10_000
        assert 50 <= gpu.watts <= 1200
        assert gpu.fp32 <= (gpu.tf32 or gpu.fp32) <= gpu.half <= (gpu.fp8 or gpu.half)
        assert gpu.peak("fp32") <= gpu.peak("bf16")
        assert gpu.memory == gpu.memory_gb * 1e9
    assert gpu_catalogue.is_ambiguous("A100")
    assert not gpu_catalogue.is_ambiguous("h100")


def test_the_documentation_lists_the_catalogue() -> None:
    page = (Path(__file__).parents[1] / "docs" / "estimate.md").read_text()
    listed = re.findall(r"`([\w-]+)`(?: \([^)]*\))?\s+([\d.]+/[\d.]+/\d+)", page)
    assert dict(listed) == {
        gpu.name: f"{gpu.memory_gb:g}/{gpu.half:g}/{gpu.watts:g}" for gpu in GPUS
    }


@pytest.mark.parametrize(
    ("driver", "found"),
    [
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA GH200 480GB", "gh200"),
        ("NVIDIA A100-SXM4-80GB", "a100-80gb"),
        ("NVIDIA A100-PCIE-40GB", "a100-40gb"),
        ("Tesla V100-SXM2-16GB", "v100-16gb"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("NVIDIA L40S", "l40s"),
        ("AMD Instinct MI300X", "mi300x"),
        ("Voodoo 2", None),
        ("", None),
    ],
)
def test_a_gpu_by_the_name_of_its_driver(driver: str, found: str | None) -> None:
    gpu = gpu_catalogue.of_device(driver)
    assert (gpu.name if gpu else None) == found

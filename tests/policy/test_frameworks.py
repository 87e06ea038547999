"""What the ranks of each framework get."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from hpcrun.policy import frameworks
from hpcrun.policy.frameworks import RankPlace
from hpcrun.state.plan import Entry, RunPlan

PLACE = RankPlace(
    rank=3,
    ranks_per_node=2,
    addresses=("10.0.0.1", "10.0.0.2"),
    master_port=15000,
    ports=(15001, 15005, 16001, 16005),
    run="study/7",
    deepspeed_config="/runs/7/deepspeed.json",
)


def _variables(name: str, place: RankPlace = PLACE) -> dict[str, str]:
    return frameworks.of(name).variables(place)


@pytest.mark.parametrize("name", ["none", "composer", "deepspeed", "mpi", "single"])
def test_without_variables_of_their_own(name: str) -> None:
    assert _variables(name) == {}


def test_lightning_finds_what_torchrun_sets() -> None:
    assert _variables("lightning") == {
        **{"TORCHELASTIC_RUN_ID": "study/7", "TORCHELASTIC_RESTART_COUNT": "0"},
        **{"TORCHELASTIC_MAX_RESTARTS": "0", "GROUP_RANK": "1", "GROUP_WORLD_SIZE": "2"},
        **{"ROLE_RANK": "3", "ROLE_WORLD_SIZE": "4", "ROLE_NAME": "default"},
    }


@pytest.mark.parametrize("name", ["accelerate", "huggingface", "auto"])
def test_on_cpus_accelerate_is_told_so(name: str) -> None:
    assert _variables(name) == {"ACCELERATE_USE_CPU": "true"}


def test_with_gpus_accelerate_gets_the_deepspeed_configuration() -> None:
    place = replace(PLACE, gpus_per_node=2)
    assert _variables("accelerate", place) == {
        "ACCELERATE_USE_DEEPSPEED": "true",
        "ACCELERATE_DEEPSPEED_CONFIG_FILE": "/runs/7/deepspeed.json",
    }
    assert _variables("accelerate", replace(place, deepspeed_config=None)) == {}
    assert _variables("huggingface", place) == _variables("auto", place) == {}


def test_tensorflow_knows_the_port_of_every_rank() -> None:
    assert json.loads(_variables("tensorflow")["TF_CONFIG"]) == {
        "cluster": {
            "worker": ["10.0.0.1:15001", "10.0.0.1:15005", "10.0.0.2:16001", "10.0.0.2:16005"]
        },
        "task": {"type": "worker", "index": 3},
    }


def test_jax_knows_its_coordinator() -> None:
    assert _variables("jax") == {
        "JAX_COORDINATOR_ADDRESS": "10.0.0.1:15000",
        "JAX_NUM_PROCESSES": "4",
        "JAX_PROCESS_ID": "3",
    }


def test_torchrun_starts_a_process_a_gpu_of_its_node() -> None:
    place = replace(PLACE, rank=1, ranks_per_node=1, gpus_per_node=8)
    assert _variables("torchrun", place) == {
        **{"PET_NNODES": "2", "PET_NODE_RANK": "1", "PET_NPROC_PER_NODE": "8"},
        **{"PET_MASTER_ADDR": "10.0.0.1", "PET_MASTER_PORT": "15000"},
    }


def test_an_older_deepspeed_script_gets_its_local_rank() -> None:
    assert frameworks.of("deepspeed").arguments(PLACE) == ["--local_rank=1"]


def test_a_single_process_finds_no_ranks() -> None:
    single = frameworks.of("single")
    assert single.one_per_node
    assert {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR"} <= single.hidden


def test_a_name_of_another_version_is_none() -> None:
    assert frameworks.of("rayon") is frameworks.of(None) is frameworks.PLAIN


@pytest.mark.parametrize(
    ("name", "ranks", "meet"),
    [("auto", 2, True), ("auto", 1, False), ("none", 2, False), ("torchrun", 2, True)],
)
def test_only_several_ranks_meet(name: str, ranks: int, meet: bool) -> None:
    """The first node's agent looks at its sockets every two seconds until they have."""
    resources = {"nodes": ranks, "ntasks_per_node": 1, "gpus_per_node": 0}
    entry = Entry("command", argv=("true",), framework=name)
    run = RunPlan(0, "x", "", {}, entry, {"resources": resources})
    assert frameworks.ranks_meet(run) is meet

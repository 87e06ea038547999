"""Roles of a spec: their ranks, nodes and programs, the job that holds them, what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hpcrun.compile import compile_spec
from hpcrun.compile.freeze import freeze
from hpcrun.errors import SpecError
from hpcrun.state import plan_file

BASE = """
name: parts
cluster: slurm
resources: {time: "01:00:00"}
"""
ROLES = """
entry: [python, common.py]
args: [--both]
flags: key=value
config: {lr: 0.1, data: {shuffle: true, path: /d}}
roles:
  server: {entry: [serve], ntasks: 2, restart: rank, config: {port: 1}}
  trainer: {main: true, nodes: 2, ntasks_per_node: 3, config: {data: {path: /e}}}
  loader: {args: [--load], ntasks: 3, first_node: 1, cpus_per_task: 4}
"""


def compiled(project: Any, text: str, *overrides: str) -> Any:
    return compile_spec(project.write("spec.yaml", BASE + text), overrides)


def found(project: Any, text: str, *overrides: str) -> str:
    with pytest.raises(SpecError) as error:
        compiled(project, text, *overrides)
    return "\n".join(map(str, error.value.problems))


def test_ranks_nodes_and_programs(project: Any) -> None:
    (run,) = compiled(project, ROLES).runs
    trainer, server, loader = run.role_plans
    assert [role.name for role in run.role_plans] == ["trainer", "server", "loader"]
    assert (trainer.ranks, server.ranks, loader.ranks) == (range(6), range(6, 8), range(8, 11))
    assert (trainer.places, server.places, loader.places) == ([0, 0, 0, 1, 1, 1], [0, 1], [1, 1, 1])
    assert run.world_size == 11
    assert (run.main_ranks, run.nodes, run.ranks_per_node) == (6, 2, 7)
    # The second node has 3 + 1 ranks of one processor, and 3 of four.
    assert run.resources.cpus_per_task == 3
    assert (run.all_cpus, loader.cpus_per_task) == (42, 4)
    # A role without an entry shares the top level's; one with an entry has its own alone.
    assert run.entry.argv == (
        *("python", "common.py", "--both", "lr=0.1"),
        *("data.shuffle=true", "data.path=/e"),
    )
    assert run.config == {"lr": 0.1, "data": {"shuffle": True, "path": "/e"}}
    assert server.entry is not None
    assert server.entry.argv == ("serve", "port=1")
    assert loader.entry is not None
    assert loader.entry.argv == (
        *("python", "common.py", "--both", "--load", "lr=0.1"),
        *("data.shuffle=true", "data.path=/d"),
    )


def test_the_job_and_its_script(project: Any) -> None:
    path = project.write("spec.yaml", BASE + ROLES)
    (array,) = freeze(compile_spec(path, ["+resources.partition=cpu"])).arrays
    for line in ("--nodes=2", "--ntasks-per-node=7", "--cpus-per-task=3", "--no-kill"):
        assert f"#SBATCH {line}\n" in array.script
    assert array.cpu_hours == 42


def test_the_batch_is_that_of_the_main_role(project: Any) -> None:
    text = ROLES + "deepspeed: {train_batch_size: 24, train_micro_batch_size_per_gpu: 2}\n"
    (run,) = compiled(project, text).runs
    assert run.deepspeed["gradient_accumulation_steps"] == 2


def test_gpus_are_shared_out(project: Any) -> None:
    text = """
entry: train.py:main
resources: {gpus_per_node: 3, cpus_per_task: 2}
roles:
  trainer: {nodes: 2}
  judge: {entry: [judge], gpus_per_node: 1, first_node: 1}
  server: {entry: [serve]}
"""
    (run,) = compile_spec(project.write("spec.yaml", text), ["cluster=slurm"]).runs
    trainer, judge, server = run.role_plans
    assert (run.resources.gpus_per_node, run.nodes, run.ranks_per_node) == (4, 2, 4)
    assert (trainer.ranks_per_node, trainer.gpus_per_node, trainer.first_gpu) == (3, 3, 0)
    assert (judge.gpus_per_node, judge.first_gpu, judge.places) == (1, 3, [1])
    assert (server.gpus_per_node, server.may_move, judge.may_move) == (0, False, False)


def test_identity_is_what_all_roles_compute(project: Any) -> None:
    def identity(*overrides: str) -> str:
        return str(compiled(project, ROLES, *overrides).runs[0].identity)

    calm = identity()
    # How many there are, and what follows their ends, makes no other run.
    for same in ("roles.server.ntasks=4", "roles.server.restart=run", "roles.trainer.nodes=1"):
        assert identity(same) == calm
    for other in ("roles.server.config.port=2", "roles.loader.args=[--fast]", "config.lr=0.2"):
        assert identity(other) != calm


def test_a_sweep_of_a_role(project: Any) -> None:
    path = project.write("spec.yaml", BASE + ROLES)
    runs = compile_spec(path, [], ["roles.server.config.port=1,2", "config.lr=0.1,0.2"]).runs
    assert len(runs) == 4
    ports = [run.role_plans[1].config["port"] for run in runs]
    rates = [run.config["lr"] for run in runs]
    assert sorted(zip(ports, rates, strict=True)) == [(1, 0.1), (1, 0.2), (2, 0.1), (2, 0.2)]


def test_without_roles_nothing_is_frozen_of_them(project: Any) -> None:
    (run,) = compiled(project, "entry: [train]\n").runs
    assert "roles" not in run.spec
    assert (run.role_plans, run.world_size) == ((), 1)


PARTS = """
name: parts
cluster: slurm
entry: [work]
config: {lr: 1}
resources: {nodes: 2, cpus_per_task: 2, time: "01:00:00", partition: main, account: lab, mem: 8G}
roles:
  worker: {}
  server:
    entry: [serve]
    ntasks: 4
    nodes: 2
    resources: {partition: small, mem: 1G, constraint: net, sbatch: {licenses: "fs:1"}}
  loader: {}
  judge: {gpus_per_node: 2, resources: {gpu_type: a30, account: null}}
"""


def test_roles_with_nodes_of_their_own(project: Any) -> None:
    path = project.write("spec.yaml", PARTS)
    plan = freeze(compile_spec(path))
    (run,) = plan.runs
    assert [(role.name, role.part, role.places) for role in run.role_plans] == [
        ("worker", 0, [0, 1]),
        ("server", 1, [2, 2, 3, 3]),
        ("loader", 0, [0]),
        ("judge", 2, [4, 4]),
    ]
    assert (run.nodes, run.all_nodes, run.shared_nodes, run.world_size) == (5, 5, 2, 9)
    assert (run.all_gpus, run.all_cpus) == (2, 2 * 2 * 2 + 4 * 2 + 2 * 2)
    assert [run.resources_of(node).mem for node in range(5)] == ["8G", "8G", "1G", "1G", "8G"]
    assert [run.resources_of(node).gpus_option for node in (0, 3, 4)] == [
        None,
        None,
        "gpus-per-node=a30:2",
    ]
    assert not run.outlives_nodes
    assert plan.arrays[0].gpu_hours == 2
    first, second, third = plan.arrays[0].script.split("#SBATCH hetjob\n")
    for line in ("--nodes=2", "--ntasks-per-node=2", "--partition=main", "--mem=8G", "--requeue"):
        assert f"#SBATCH {line}\n" in first
    assert second.split("#SBATCH ")[1:] == [
        *("--job-name=parts\n", "--nodes=2\n", "--ntasks-per-node=2\n", "--cpus-per-task=2\n"),
        *("--mem=1G\n", "--time=01:00:00\n", "--partition=small\n", "--account=lab\n"),
        *("--constraint=net\n", "--licenses=fs:1\n", "--requeue\n"),
    ]
    for line in ("--nodes=1", "--gpus-per-node=a30:2", "--partition=main", "--mem=8G"):
        assert f"#SBATCH {line}\n" in third
    assert "--account" not in third


def test_a_sweep_of_them_is_no_array(project: Any) -> None:
    path = project.write("spec.yaml", PARTS)
    arrays = freeze(compile_spec(path, [], ["config.lr=1,2,3"])).arrays
    assert [array.runs for array in arrays] == [(0,), (1,), (2,)]
    assert all("--array" not in array.script for array in arrays)


def test_their_plan_is_read_again(project: Any) -> None:
    plan = freeze(compile_spec(project.write("spec.yaml", PARTS)))
    again = plan_file.unpack(json.loads(json.dumps(plan_file.pack(plan))))
    assert again.runs[0].role_plans == plan.runs[0].role_plans


def test_no_spare_nodes_beside_them(project: Any) -> None:
    text = "resources: {spare_nodes: 1}\nroles: {a: {}, b: {resources: {mem: 1G}}}\nentry: [x]\n"
    with pytest.raises(SpecError, match=r"resources.spare_nodes: found 1, and a role has nodes"):
        compile_spec(project.write("spec.yaml", text))


@pytest.mark.parametrize(
    ("roles", "message"),
    [
        ("{a: {resources: {mem: 1G}}, b: {}}", "the main role's nodes are those of the top level"),
        ("{a: {}, b: {resources: {nodes: 2}}}", "roles.b.resources.nodes: a role has its own"),
        ("{a: {}, b: {resources: {time: '1'}}}", "all parts of a job have the same"),
        ("{a: {}, b: {resources: {mem: 1G}, first_node: 1}}", "a role with resources has nodes of"),
        ("{a: {}, b: {resources: {partitio: x}}}", "roles.b.resources.partitio: unknown key"),
        ("{a: {}, b: {resources: {mem: much}}}", "roles.b.resources.mem: found 'much'"),
        ("{a: {}, b: {resources: {sbatch: {array: 3}}}}", "hpcrun sets this option"),
        ("{a: {main: true}, b: {main: true}}", "found a second main role, beside 'a'"),
        ("{a: {}, 'b c': {}}", "found the name 'b c'; accepted are letters"),
        ("{a: {}, b-c: {}, b_c: {}}", "'b-c' would have the same environment variable"),
        ("{a: {restart: ignore}, b: {}}", "found ignore, and the run is done when this role is"),
        ("{a: {first_node: 1}, b: {}}", "found 1; the main role begins on node 0"),
        ("{a: {}, b: {ntasks: 3, nodes: 2}}", "found 3, which is not divided evenly among 2 nodes"),
        ("{a: {}, b: {ntasks: 4, nodes: 2, ntasks_per_node: 3}}", "evenly among 2 nodes of 3"),
        ("{a: {}, b: {ntasks: 0}}", "roles.b.ntasks: found 0; accepted is a whole number from 1"),
        ("{a: {}, b: {budget: -1}}", "roles.b.budget: found -1"),
        ("{a: {}, b: {restart: always}}", "accepted is run or role or rank or ignore"),
        ("{a: {}, b: {entry: train.py:main}}", "found a function; only the main role may be one"),
        ("{a: {}, b: {entry: missing.py}}", "roles.b.entry: there is no file 'missing.py'"),
        ("{a: {}, b: {entri: train.py}}", "unknown key; 'roles.b' accepts"),
        ("{a: {}, b: {gpus_per_node: 2, ntasks_per_node: 3}}", "there is one rank per GPU"),
        ("{a: {}, b: {ntasks: 200, nodes: 1}}", "found 200 ranks of roles beside the main one"),
        ("{a: {}, b: {args: ['${hpcrun:newest}']}}", "a match of recovery.resume.when"),
        ("[a]", "found a list; accepted is a mapping"),
    ],
)
def test_mistakes(project: Any, roles: str, message: str) -> None:
    assert message in found(project, f"entry: [train]\nroles: {roles}\n")


def test_what_a_main_role_has_wrong_is_told_of_it_alone(project: Any) -> None:
    wrong = "nodes: -1, ntasks_per_node: 0, cpus_per_task: 0, gpus_per_node: -3"
    problems = found(project, f"entry: [train]\nroles: {{a: {{{wrong}}}}}\n").splitlines()
    assert len(problems) == 4
    assert all(" roles.a." in one for one in problems)


def test_no_fewer_nodes(project: Any) -> None:
    text = ROLES + "recovery: {shrink: true}\n"
    assert "recovery.shrink: a run with roles does not go on" in found(project, text)


@pytest.mark.parametrize(
    ("roles", "says"),
    [
        (
            "a: {gpus_per_node: 3}, b: {gpus_per_node: 3}",
            "resources.gpus_per_node: found 6; a node has 4",
        ),
        (
            "a: {}, b: {gpus_per_node: 8, resources: {partition: big}}",
            "roles.b.gpus_per_node: found 8; a node has 4",
        ),
        (
            "a: {}, b: {resources: {gpu_request: none, gpu_type: a100}}",
            "roles.b.resources.gpu_type: found a100, and gpu_request is none",
        ),
    ],
)
def test_roles_have_no_more_gpus_than_their_nodes(project: Any, roles: str, says: str) -> None:
    text = f"entry: [x]\nroles: {{{roles}}}\n"
    assert says in found(project, text, "resources.node_has_gpus=4")

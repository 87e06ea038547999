"""Profiles and starters of made-up clusters: they compile, and what is not known is said."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from hpcrun.check.check import judge
from hpcrun.check.finding import ERROR, WARNING
from hpcrun.compile import compile_spec
from hpcrun.compile.freeze import freeze
from hpcrun.compile.spec import json_schema
from hpcrun.errors import ClusterUnreachable, SpecError, UsageError
from hpcrun.site.shared_storage import StoragePlace
from hpcrun.site.slurm_site import SlurmSite
from hpcrun.tools.init.starter import init_plan, survey
from hpcrun.tools.init.starter.init_plan import InitPlan, InitRequest
from hpcrun.tools.init.starter.python_search import RUNNING, FoundPython
from hpcrun.tools.init.starter.site_software import SiteSoftware
from hpcrun.tools.init.starter.survey import LoginNetwork, Survey
from tests.support import made_site
from tests.support.made_site import nodes, partition

CPU_BUILD = FoundPython("/venv/bin/python", RUNNING, "3.11.2", "2.5.1+cpu", "0.19.8", "cpu")
CUDA_BUILD = dataclasses.replace(CPU_BUILD, torch="2.5.1", build="cuda")
GPU_NODES = nodes(["g1", "g2"], Gres="gpu:a100:4")
CPU_NODES = nodes(["c1", "c2", "c3"])
CPU, GPU = partition("cpu", "c[1-3]", Default="YES"), partition("gpu", "g[1-2]")
ACCOUNT: dict[str, Any] = {"accounts": {"lab": "normal"}, "default_account": "lab"}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home, and an empty current directory elsewhere."""
    path, project = tmp_path / "home", tmp_path / "project"
    path.mkdir()
    project.mkdir()
    monkeypatch.setenv("HOME", str(path))
    monkeypatch.delenv("HPCRUN_ROOT", raising=False)
    monkeypatch.delenv("HPCRUN_CLUSTERS", raising=False)
    monkeypatch.chdir(project)
    return path


class Desk:
    """Makes plans of a cluster that is made up."""

    def __init__(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.home, self._patch = home, monkeypatch

    def plan(
        self, site: SlurmSite | None, python: FoundPython | None = CPU_BUILD, **given: Any
    ) -> InitPlan:
        """The plan of ``hpcrun init`` in the current directory, or with other options."""
        options = {name: given.pop(name) for name in ("force", "profile_only", "root", "is_local")
                   if name in given}  # fmt: skip
        shared = StoragePlace(str(self.home), "$HOME", "nfs4", is_shared=True, free=10**12)
        found = Survey(
            host="login1",
            user="ann",
            slurm=site,
            storage=given.pop("storage", [shared]),
            pythons=given.pop("pythons", [python] if python else []),
            software=given.pop("software", SiteSoftware(loaded={})),
            has_compiler=given.pop("has_compiler", True),
            network=LoginNetwork(("ib0 (InfiniBand)",), ("mlx5_0:1 InfiniBand, 400 Gb/sec",)),
        )
        self._patch.setattr(survey, "take", lambda _directory, *, with_slurm: found)
        return init_plan.make(InitRequest(given.pop("directory", Path()), **options))


@pytest.fixture
def desk(home: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    return Desk(home, monkeypatch)


def _spec() -> dict[str, Any]:
    loaded = yaml.safe_load(Path("experiment.yaml").read_text())
    assert isinstance(loaded, dict)
    return loaded


def _profile(home: Path, name: str = "alps") -> dict[str, Any]:
    loaded = yaml.safe_load((home / ".config/hpcrun/clusters" / f"{name}.yaml").read_text())
    assert isinstance(loaded, dict)
    return loaded


def _valid(of: str, data: Mapping[str, Any]) -> None:
    jsonschema.Draft202012Validator(json_schema.of(of)).validate(data)


SITES: dict[str, SlurmSite] = {
    "CPUs": made_site.site([CPU], CPU_NODES, **ACCOUNT),
    "GPUs": made_site.site([CPU, GPU], [*CPU_NODES, *GPU_NODES], **ACCOUNT),
    "no default partition": made_site.site([partition("a.b+c-d", "c[1-3]")], CPU_NODES, **ACCOUNT),
    "no account": made_site.site([CPU], CPU_NODES),
    "no slurmdbd": made_site.site([CPU], CPU_NODES, without_accounting="connection\nrefused"),
    "another account": made_site.site(
        [partition("cpu", "c[1-3]", AllowAccounts="rich")],
        CPU_NODES,
        accounts={"lab": "normal", "rich": "normal"},
        default_account="lab",
    ),
    "no limits": made_site.site(
        [partition("cpu", "c[1-3]", MaxTime="UNLIMITED", Default="YES")], CPU_NODES, **ACCOUNT
    ),
    "small": made_site.site(
        [partition("cpu", "c1", MaxTime="00:02:00", MaxNodes="1", Default="YES")],
        nodes(["c1"], CPUTot="1", RealMemory="1000"),
        MaxArraySize="2",
        **ACCOUNT,
    ),
    "no memory": made_site.site([CPU], CPU_NODES, SelectTypeParameters="CR_CORE", **ACCOUNT),
    "preemption": made_site.site(
        [partition("cpu", "c[1-3]", PreemptMode="REQUEUE", GraceTime="30", Default="YES")],
        CPU_NODES,
        AuthInfo="cred_expire=60",
        PreemptType="preempt/partition_prio",
        **ACCOUNT,
    ),
}


@pytest.mark.parametrize("python", [CPU_BUILD, CUDA_BUILD], ids=["cpu", "cuda"])
@pytest.mark.parametrize("name", SITES)
def test_what_is_written_compiles_and_the_cluster_takes_it(
    name: str, python: FoundPython, desk: Desk
) -> None:
    site = SITES[name]
    desk.plan(site, python).write()
    profile, spec = _profile(desk.home), _spec()
    _valid("profile", profile)
    _valid("spec", spec)
    compiled = compile_spec("experiment.yaml")
    assert compiled.name == "project"
    plan = freeze(compiled)
    assert plan.cluster["name"] == "alps"
    found = list(judge(plan, site))
    assert [one.message for one in found if one.severity in (ERROR, WARNING)] == []
    assert str(compiled.root) == str(desk.home / "hpcrun-runs")


def test_each_line_of_a_profile_says_where_it_is_from(desk: Desk) -> None:
    desk.plan(SITES["GPUs"], CUDA_BUILD).write()
    text = (desk.home / ".config/hpcrun/clusters/alps.yaml").read_text()
    lines = text.splitlines()
    assert lines[0] == "# yaml-language-server: $schema=../profile.schema.json"
    assert (desk.home / ".config/hpcrun/profile.schema.json").is_file()
    bare = [
        line
        for before, line in zip(["", *lines], lines, strict=False)
        if "#" not in line and not before.lstrip().startswith("#")
    ]
    assert bare == []
    assert "# scontrol: the default partition, cpu, has no GPUs; 2 nodes of 64 CPUs" in text
    assert "# sacctmgr: your default account" in text
    assert "# scontrol: MaxArraySize" in text


def test_a_profile_says_how_gpus_are_asked_for(desk: Desk) -> None:
    def text(site: SlurmSite) -> str:
        desk.plan(site, CUDA_BUILD).write()
        profile = desk.home / ".config/hpcrun/clusters/alps.yaml"
        found = profile.read_text()
        profile.unlink()
        return found

    assert "gpu_request" not in text(SITES["GPUs"])
    none = text(SITES["CPUs"])
    assert "no node has Gres=gpu" in none
    profile = yaml.safe_load(
        none.replace("# gpu_request", "gpu_request").replace("# node_", "node_")
    )
    assert profile["resources"].items() >= {"gpu_request": "none", "node_has_gpus": 8}.items()
    settings = {**SITES["GPUs"].settings, "SelectType": "select/linear"}
    assert "  gpu_request: gres " in text(dataclasses.replace(SITES["GPUs"], settings=settings))


def test_the_first_line_of_a_spec_names_a_schema_that_is_there(desk: Desk) -> None:
    desk.plan(SITES["CPUs"]).write()
    first = Path("experiment.yaml").read_text().splitlines()[0]
    name = first.removeprefix("# yaml-language-server: $schema=")
    assert json.loads(Path(name).read_text()) == json.loads(json.dumps(json_schema.of("spec")))


def test_gpus_are_for_a_torch_that_can_use_them(desk: Desk) -> None:
    plan = desk.plan(SITES["GPUs"], CUDA_BUILD)
    plan.write()
    assert _spec()["resources"]["gpus_per_node"] == 1
    assert "ntasks_per_node" not in _spec()["resources"]
    plan = desk.plan(SITES["GPUs"], CPU_BUILD, force=True)
    plan.write()
    assert _spec()["resources"]["ntasks_per_node"] == 1
    assert any("built for CPUs" in note for note in plan.notes)


NOTES: dict[str, tuple[SlurmSite, str]] = {
    "slurmdbd": (SITES["no slurmdbd"], "accounts, QOS and their limits are not known: connection"),
    "association": (SITES["no account"], "this Slurm does not insist on one"),
    "enforced": (
        made_site.site([CPU], CPU_NODES, AccountingStorageEnforce="associations"),
        "its jobs are refused: ask the administrators for an account",
    ),
    "default": (SITES["no default partition"], "no default partition; a.b+c-d was chosen"),
    "account": (SITES["another account"], "the account rich was chosen: with your default, lab"),
    "one node": (SITES["small"], "the starter takes 1 node: two can be had nowhere"),
    "hidden": (
        made_site.site([partition("dark", "c[1-3]", Hidden="YES")], CPU_NODES, **ACCOUNT),
        "the partition dark is hidden from sinfo, and is open to you",
    ),
    "closed": (
        made_site.site([CPU, partition("ops", "c1", AllowGroups="root")], CPU_NODES, **ACCOUNT),
        "not open to you, of 2 partitions: ops",
    ),
    "nodes": (
        made_site.site([partition("cpu", "d[1-2]", Default="YES")],
                       nodes(["d1", "d2"], State="DOWN"), **ACCOUNT),
        "0 of the 2 that fit are up in the partition cpu",
    ),
    "local": (
        made_site.site([CPU], CPU_NODES, ClusterName="local", **ACCOUNT),
        "the profile is called local-slurm: the cluster's own name, 'local', means this machine",
    ),
    "name": (
        made_site.site([CPU], CPU_NODES, ClusterName="9 lives!", **ACCOUNT),
        "the profile is called c-9-lives: the cluster's own name, '9 lives!', is no name",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", NOTES)
def test_what_is_not_known_or_was_chosen_is_said(case: str, desk: Desk) -> None:
    site, words = NOTES[case]
    plan = desk.plan(site)
    assert any(words in note for note in plan.notes), plan.notes


def test_where_no_partition_is_open_the_starter_is_for_this_machine(desk: Desk) -> None:
    plan = desk.plan(made_site.site([partition("ops", "c1", AllowGroups="root")], CPU_NODES))
    plan.write()
    assert _spec()["cluster"] == "local"
    assert any("is for the groups root" in note for note in plan.notes)
    assert any("the starter is for this machine" in note for note in plan.notes)
    _valid("profile", _profile(desk.home))
    compile_spec("experiment.yaml")


def test_without_slurm_the_starter_is_for_this_machine(desk: Desk) -> None:
    plan = desk.plan(None)
    plan.write()
    assert _spec()["cluster"] == "local"
    assert plan.profile is None
    assert not (desk.home / ".config").exists()
    assert "there is no Slurm here" in plan.notes[0]
    _valid("spec", _spec())
    assert compile_spec("experiment.yaml").cluster["executor"] == "local"
    with pytest.raises(UsageError, match="no Slurm to make a profile of"):
        desk.plan(None, profile_only=True)


def test_a_python_elsewhere_is_named_and_none_is_said(desk: Desk) -> None:
    bare = FoundPython("/usr/bin/python3", RUNNING, "3.11.2")
    other = dataclasses.replace(CPU_BUILD, executable="/envs/ml/bin/python", origin="conda")
    plan = desk.plan(SITES["CPUs"], pythons=[bare, other])
    plan.write()
    assert _spec()["environment"] == {"python": "/envs/ml/bin/python"}
    assert any("runs hpcrun has no torch and deepspeed" in note for note in plan.notes)
    plan = desk.plan(SITES["CPUs"], pythons=[bare], force=True)
    plan.write()
    assert "environment" not in _spec()
    assert any("no Python with torch and deepspeed was found" in note for note in plan.notes)
    assert plan.next_lines()[0] == "pip install 'hpcrun[train]'"
    unasked = dataclasses.replace(other, is_unchecked=True, problem="not started: it is theirs")
    plan = desk.plan(SITES["CPUs"], pythons=[unasked], force=True)
    assert any("its files tell of torch" in note for note in plan.notes)


def test_modules_that_the_python_needs(desk: Desk, tmp_path: Path) -> None:
    file = tmp_path / "modulefile"
    file.write_text("prepend-path PATH /apps/pytorch/2.3/bin\n")
    python = dataclasses.replace(CPU_BUILD, executable="/apps/pytorch/2.3/bin/python")
    software = SiteSoftware(("cuda/12",), {"pytorch/2.3": str(file)})
    desk.plan(SITES["CPUs"], python, software=software).write()
    assert _profile(desk.home)["setup"] == ["module load pytorch/2.3"]
    evil = SiteSoftware((), {"x; rm -rf /": str(file)})
    plan = desk.plan(SITES["CPUs"], python, software=evil, force=True)
    plan.write()
    assert "setup" not in _profile(desk.home)
    assert any("modules that are loaded in this shell are not in jobs" in n for n in plan.notes)


def test_a_root_elsewhere_is_in_the_profile_and_to_be_exported(desk: Desk) -> None:
    work = StoragePlace("/work/my group/ann", "$WORK", "lustre", is_shared=True, free=10**12)
    plan = desk.plan(SITES["CPUs"], storage=[work])
    plan.write()
    assert _profile(desk.home)["root"] == "/work/my group/ann/hpcrun-runs"
    assert plan.next_lines()[0] == "export HPCRUN_ROOT='/work/my group/ann/hpcrun-runs'"
    assert str(compile_spec("experiment.yaml").root) == "/work/my group/ann/hpcrun-runs"


def test_twice_is_harmless_and_what_was_changed_is_kept(desk: Desk) -> None:
    site = SITES["GPUs"]
    desk.plan(site).write()
    path = desk.home / ".config/hpcrun/clusters/alps.yaml"
    edited = path.read_text().replace("partition: cpu", "partition: gpu")
    path.write_text(edited)
    Path("train.py").write_text("# mine\n")
    plan = desk.plan(site)
    plan.write()
    assert path.read_text() == edited
    assert Path("train.py").read_text() == "# mine\n"
    assert {one.path.name: one.action for one in plan.files} == {
        "spec.schema.json": "unchanged",
        "train.py": "kept",
        "experiment.yaml": "kept",
    }
    assert plan.job is not None
    assert (plan.job.use.name, plan.job.why) == ("gpu", "as the profile says")
    assert any("is there already, and is kept" in note for note in plan.notes)
    desk.plan(site, force=True).write()
    assert "partition: cpu" in path.read_text()
    assert Path("train.py").read_text() != "# mine\n"


def test_a_profile_of_the_site_is_used_and_a_spec_says_the_rest(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    team = tmp_path / "team"
    team.mkdir()
    (team / "alps.yaml").write_text("executor: slurm\nroot: /team/runs\n")
    monkeypatch.setenv("HPCRUN_CLUSTERS", str(team))
    plan = desk.plan(SITES["another account"])
    plan.write()
    assert plan.profile == team / "alps.yaml"
    assert not (desk.home / ".config").exists()
    assert _spec()["resources"]["account"] == "rich"
    assert _spec()["resources"]["partition"] == "cpu"
    assert str(compile_spec("experiment.yaml").root) == "/team/runs"
    (team / "alps.yaml").write_text("executor: slrum\n")
    with pytest.raises(SpecError, match="slrum"):
        desk.plan(SITES["CPUs"])


def test_a_schema_of_another_version_is_replaced_and_other_files_are_not(desk: Desk) -> None:
    Path("spec.schema.json").write_text('{\n "title": "hpcrun spec"}')
    desk.plan(SITES["CPUs"]).write()
    assert len(Path("spec.schema.json").read_text()) > 1000
    Path("spec.schema.json").write_text("{}")
    desk.plan(SITES["CPUs"]).write()
    assert Path("spec.schema.json").read_text() == "{}"


@pytest.mark.parametrize("name", ["experiment.yaml", "train.py"])
def test_a_project_of_somebodys_own_is_left_alone(name: str, desk: Desk) -> None:
    Path(name).write_text("mine\n")
    with pytest.raises(UsageError, match="did not write it; nothing was written") as error:
        desk.plan(SITES["CPUs"])
    assert "--profile-only" in str(error.value)
    plan = desk.plan(SITES["CPUs"], profile_only=True)
    plan.write()
    assert os.listdir() == [name]  # noqa: PTH208
    assert plan.next_lines() == ["hpcrun check SPEC cluster=alps"]


def test_places_where_no_project_is_made(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="is your home"):
        desk.plan(SITES["CPUs"], directory=desk.home)
    Path("file").touch()
    with pytest.raises(UsageError, match="is no directory"):
        desk.plan(SITES["CPUs"], directory=Path("file"))
    monkeypatch.setattr(os, "access", lambda _path, _mode: False)
    with pytest.raises(UsageError, match="cannot be written by you"):
        desk.plan(SITES["CPUs"], directory=Path("new/one"))


def test_a_new_directory_is_made_and_gone_to(desk: Desk) -> None:
    plan = desk.plan(SITES["CPUs"], directory=Path("a/9 lives"))
    plan.write()
    assert Path("a/9 lives/train.py").is_file()
    assert plan.next_lines() == ["cd 'a/9 lives'", "hpcrun check", "hpcrun submit"]
    assert compile_spec("a/9 lives/experiment.yaml").name == "starter-9-lives"


def test_a_name_that_is_taken_is_not_used_again(desk: Desk) -> None:
    (desk.home / "hpcrun-runs" / "project").mkdir(parents=True)
    plan = desk.plan(SITES["CPUs"])
    plan.write()
    assert _spec()["name"] == "project-2"
    assert any("the experiment is called project-2" in note for note in plan.notes)
    assert {one.action for one in desk.plan(SITES["CPUs"]).files} == {"unchanged", "kept"}


def test_other_profiles_and_a_lacking_compiler_are_told_of(desk: Desk) -> None:
    own = desk.home / ".config/hpcrun/clusters"
    own.mkdir(parents=True)
    (own / "jean-zay.yaml").write_text("executor: slurm\n")
    plan = desk.plan(SITES["CPUs"], has_compiler=False)
    assert any("other profiles that are there" in n and "jean-zay" in n for n in plan.notes)
    assert any("no C++ compiler and ninja" in note for note in plan.notes)
    plan = desk.plan(SITES["GPUs"], CUDA_BUILD, has_compiler=False)
    assert not any("compiler" in note for note in plan.notes)


def test_a_starter_for_gpus_runs_on_a_machine_without(desk: Desk) -> None:
    desk.plan(SITES["GPUs"], CUDA_BUILD).write()
    how = Path("experiment.yaml").read_text().splitlines()[2]
    words = ["cluster=local", "gpus_per_node=0"]
    assert f"hpcrun run {' '.join(words)} here" in how
    compiled = compile_spec("experiment.yaml", words)
    assert compiled.cluster["executor"] == "local"


def test_a_slurm_that_is_silent_says_what_else_there_is(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def take(_directory: Path, *, with_slurm: bool) -> Survey:
        raise ClusterUnreachable("scontrol: no answer", hint="repeat")

    monkeypatch.setattr(survey, "take", take)
    with pytest.raises(ClusterUnreachable, match="hpcrun init --local"):
        init_plan.make(InitRequest(Path()))


def test_the_summary_in_words_and_as_data(desk: Desk) -> None:
    plan = desk.plan(SITES["GPUs"], CUDA_BUILD)
    rows = {name: what for name, what, _ in init_plan.rows(plan)}
    assert rows["cluster"] == "alps, Slurm 24.11.5"
    assert rows["partitions"] == "2 of 2 open to you: cpu, gpu"
    assert rows["first job"] == "2 nodes, 1 GPU a node"
    data = json.loads(json.dumps(init_plan.data(plan, dry_run=True)))
    assert data["job"]["partition"] == "gpu"
    assert [one["name"] for one in data["partitions"]] == ["cpu", "gpu"]
    assert data["pythons"][0]["chosen"] is True
    assert data["files"][-1]["text"].startswith("# yaml-language-server")
    local = json.loads(json.dumps(init_plan.data(desk.plan(None, None), dry_run=False)))
    assert (local["cluster"], local["job"], local["slurm"]) == ("local", None, None)
    assert "text" not in local["files"][0]

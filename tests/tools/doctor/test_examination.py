"""``hpcrun doctor`` on this machine, with Slurm's recorded answers, and with a silent Slurm."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from hpcrun.cli.main import group
from hpcrun.errors import ClusterUnreachable, SpecError
from hpcrun.slurm import client
from hpcrun.state.suspect_nodes import SuspectNodes
from hpcrun.tools.doctor import doctor_profile, examination, machine_facts
from hpcrun.tools.doctor.machine_promises import PythonFacts, StorageFacts

RECORDED = Path(__file__).parents[2] / "site" / "recorded"


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A home without profiles; storage and Python have their own tests."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("HPCRUN_CLUSTERS", raising=False)
    monkeypatch.setattr(
        machine_facts, "measure", lambda root: StorageFacts(str(root), "nfs4", True, 0.004, 1e9)
    )
    libraries = {"torch": "2.13.0", "deepspeed": "0.19.8"}
    facts = PythonFacts("/venv/bin/python", "3.11.2", libraries, None)
    monkeypatch.setattr(machine_facts, "ask_job_python", lambda profile, python: facts)


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> dict[str, str | Exception]:
    """What Slurm's commands answer."""
    answers: dict[str, str | Exception] = {
        program: (RECORDED / f"{what}-24.11.txt").read_text()
        for program, what in (("scontrol", "controller"), ("sacctmgr", "accounting"))
    }

    def command(argv: Sequence[str], **_options: Any) -> str:
        answer = answers[argv[0]]
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(client, "command", command)
    monkeypatch.setattr(client, "available", lambda: True)
    return answers


def doctor(*arguments: str) -> Result:
    runner = CliRunner()
    return runner.invoke(group, ["doctor", *arguments], standalone_mode=False)


def test_a_cluster(slurm: dict[str, str | Exception], tmp_path: Path) -> None:
    SuspectNodes(tmp_path / "hpcrun-runs").record("n4", "ib0 has no carrier", "doctor")
    answer = doctor("--json")
    assert answer.return_value == 0, answer.output
    found = json.loads(answer.stdout)
    assert (found["cluster"], found["slurm"]) == ("testbed (profile slurm)", "24.11.5")
    verdicts = {one["name"]: one["verdict"] for one in found["promises"]}
    assert verdicts["requeue"] == "works"
    assert verdicts["GPUs"] == "works less"
    assert verdicts["fabric"] == "not known"
    assert [one["node"] for one in found["suspects"]] == ["n4"]
    answer = doctor()
    rows = [line.split()[0] for line in answer.stdout.splitlines()]
    # The worst come first.
    assert rows.index("GPUs") < rows.index("fabric") < rows.index("requeue")
    assert "suspect node n4: ib0 has no carrier (until " in answer.stdout
    assert "GPUs: Gres=gpu:TYPE:N on the nodes in slurm.conf" in answer.stdout
    assert "(the site's administrators)" in answer.stdout


def test_a_promise_that_does_not_hold(slurm: dict[str, str | Exception]) -> None:
    text = str(slurm["scontrol"])
    slurm["scontrol"] = text.replace("RequeueExit             = (null)", "RequeueExit = 1-255")
    answer = doctor()
    assert answer.return_value == 1
    assert answer.stdout.splitlines()[2].startswith("exit codes")


def test_without_accounting(slurm: dict[str, str | Exception]) -> None:
    slurm["sacctmgr"] = client.CommandFailed("sacctmgr: error: Unable to connect")
    found = json.loads(doctor("--json").stdout)
    (one,) = [one for one in found["promises"] if one["name"] == "accounting"]
    assert one["verdict"] == "works less"
    assert "Unable to connect" in one["found"]


def test_a_slurm_that_is_silent_leaves_the_rest(slurm: dict[str, str | Exception]) -> None:
    slurm["scontrol"] = client.CommandFailed("Unable to contact slurm controller")
    answer = doctor("--json")
    assert answer.return_value == 4
    found = json.loads(answer.stdout)
    verdicts = {one["name"]: one["verdict"] for one in found["promises"]}
    assert verdicts["Slurm"] == "not known"
    assert verdicts["job's Python"] == verdicts["root"] == "works"
    assert found["slurm"] is None
    slurm["scontrol"] = client.CommandFailed("slurm_load_node error: Access/permission denied")
    assert "Slurm: this Slurm shows its nodes or partitions to administrators" in doctor().stdout


def test_no_slurm_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "available", lambda: False)
    answer = doctor()
    assert answer.return_value == 0, answer.output
    assert "there is no sbatch on PATH: this machine is examined" in answer.stderr
    assert answer.stdout.startswith("local\n")
    with pytest.raises(ClusterUnreachable, match="no sbatch on PATH"):
        examination.examine(doctor_profile.load("slurm", None))
    answer = doctor("--nodes", "2")
    assert "--nodes tests the nodes of a Slurm cluster" in str(answer.exception)


def test_commands_of_slurm_without_a_cluster(slurm: dict[str, str | Exception]) -> None:
    slurm["scontrol"] = client.CommandFailed(
        "scontrol: error: fetch_config: failed to fetch config"
    )
    slurm["sacctmgr"] = slurm["scontrol"]
    answer = doctor()
    assert answer.return_value == 0, answer.output
    assert "without a slurm.conf: this machine is examined, as cluster=local" in answer.stderr
    assert answer.stdout.startswith("local\n")
    assert doctor("--cluster", "slurm").return_value == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--save-baseline"], "give --nodes, too"),
        (["--nodes", "2", "--clear", "n1"], "do not go together"),
        (["--nodes", "--time", "0"], "accepted is 1 to 240 minutes"),
        (["--nodes", "--wait", "nan"], "accepted is a number of minutes above 0"),
        (["--clear", "n9"], "n9 is not among the suspect nodes"),
        (["--cluster", "nowhere"], "there is no cluster profile 'nowhere'"),
    ],
)
def test_what_is_refused(
    arguments: list[str], message: str, slurm: dict[str, str | Exception]
) -> None:
    assert message in str(doctor(*arguments).exception)


def test_cleared_by_hand(slurm: dict[str, str | Exception], tmp_path: Path) -> None:
    SuspectNodes(tmp_path / "hpcrun-runs").record("n4", "slow", "doctor")
    answer = doctor("--clear", "n4")
    assert answer.stdout == "n4 is not suspect any more\n"
    assert json.loads(doctor("--json").stdout)["suspects"] == []


def test_which_profile(slurm: dict[str, str | Exception], tmp_path: Path) -> None:
    assert doctor_profile.load(None, None).name == "slurm"
    place = tmp_path / ".config" / "hpcrun" / "clusters"
    place.mkdir(parents=True)
    (place / "alps.yaml").write_text("root: /scratch/ann\n")
    found = doctor_profile.load(None, None)
    assert (found.name, found.root, found.is_slurm) == ("alps", Path("/scratch/ann"), True)
    assert found.notes == ("with the cluster profile alps; --cluster NAME chooses another",)
    (place / "jura.yaml").write_text("executor: local\n")
    found = doctor_profile.load(None, tmp_path / "elsewhere")
    assert (found.name, found.root) == ("slurm", tmp_path / "elsewhere")
    assert "alps, jura" in found.notes[0]
    assert not doctor_profile.load("jura", None).is_slurm
    (place / "jura.yaml").write_text("executor: slrm\n")
    with pytest.raises(SpecError, match="slrm"):
        doctor_profile.load("jura", None)


def test_gpus_of_this_machine(tmp_path: Path) -> None:
    assert examination.local_gpus(tmp_path / "none") == 0
    (tmp_path / "gpus" / "0000:01:00.0").mkdir(parents=True)
    assert examination.local_gpus(tmp_path / "gpus") == 1

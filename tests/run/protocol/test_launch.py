"""What workers are told, and the placeholders that are filled in there."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from hpcrun.errors import HpcrunError
from hpcrun.run.protocol.launch import VARIABLE, Launch, LaunchNode
from hpcrun.state.plan import Entry
from tests.support.place import launch_of

NODES = (
    LaunchNode("n1", "/local/n1/code", "/local/n1", "ib0", "10.9.0.1", hca="=mlx5_0:1"),
    LaunchNode(
        "n2", "/local/n2/code", "/local/n2", "ib0", "10.9.0.2", extensions="/x", devices="0,1"
    ),
)


@pytest.fixture
def launch(tmp_path: Path) -> Launch:
    entry = Entry("script", file="train.py", argv=("--lr=1", "${hpcrun:code}"))
    return launch_of(tmp_path, nodes=NODES, attempt=2, entry=entry, config={"lr": 1.0})


def test_what_is_written_is_what_is_read(launch: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
    launch.write()
    assert Launch.read(launch.paths.launch) == launch
    monkeypatch.setenv(VARIABLE, str(launch.paths.launch))
    assert Launch.current() == launch
    monkeypatch.delenv(VARIABLE)
    assert Launch.current() is None


def test_what_another_version_wrote_is_read(launch: Launch) -> None:
    """`hpcrun stacks` and `exec` look into attempts that an earlier hpcrun began."""
    launch.write()
    data = json.loads(launch.paths.launch.read_text())
    data["later"] = data["nodes"][1]["staged"] = "/local/staged"
    launch.paths.launch.write_text(json.dumps(data))
    assert Launch.read(launch.paths.launch) == launch


def test_every_placeholder(launch: Launch) -> None:
    text = (
        "${hpcrun:directory} ${hpcrun:deepspeed_config} ${hpcrun:attempt} ${hpcrun:code} "
        "${hpcrun:scratch} ${hpcrun:work}"
    )
    run = launch.directory
    expected = f"{run} {run}/attempts/2/deepspeed.json 2 /local/n1/code /local/n1 {run}/work"
    assert launch.fill(text, NODES[0]) == expected


def test_ranks_share_a_working_directory_or_have_one_each(launch: Launch) -> None:
    run = Path(launch.directory)
    assert [launch.directory_of(rank) for rank in (0, 1)] == [run / "work"] * 2
    launch = replace(launch, working_directory="exp", spec={"working_directory": "rank"})
    assert launch.directory_of(1) == run / "work" / "rank-00001" / "exp"


def test_what_is_node_local_differs_between_nodes(launch: Launch) -> None:
    assert [launch.fill("--tmp=${hpcrun:scratch}/x", node) for node in NODES] == [
        "--tmp=/local/n1/x",
        "--tmp=/local/n2/x",
    ]


def test_it_goes_into_lists_and_mappings_and_leaves_the_rest(launch: Launch) -> None:
    value = {
        "deep": [{"path": "${hpcrun:attempt}/${hpcrun:attempt}"}, ("${hpcrun:attempt}",)],
        "number": 3,
        "flag": True,
        "nothing": None,
        "dollar": "$HOME ${oc.env:HOME} ${hpcrun}",
    }
    assert launch.fill(value, NODES[0]) == {
        "deep": [{"path": "2/2"}, ["2"]],
        "number": 3,
        "flag": True,
        "nothing": None,
        "dollar": "$HOME ${oc.env:HOME} ${hpcrun}",
    }


def test_filling_changes_nothing_in_place(launch: Launch) -> None:
    value = {"path": ["${hpcrun:attempt}"]}
    launch.fill(value, NODES[0])
    assert value == {"path": ["${hpcrun:attempt}"]}


@pytest.mark.parametrize("name", ["dir", "Directory", "rank"])
def test_an_unknown_placeholder_is_named_with_those_there_are(launch: Launch, name: str) -> None:
    with pytest.raises(HpcrunError) as caught:
        launch.fill({"a": [f"x ${{hpcrun:{name}}}"]}, NODES[0])
    text = str(caught.value)
    assert text.startswith(f"${{hpcrun:{name}}} is not known; there are directory,")
    assert "scratch" in text

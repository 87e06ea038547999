"""What README and docs/getting-started.md have a reader type on a cluster, on a real Slurm."""

from __future__ import annotations

import shlex

import pytest

from tests.cluster.workbench import Workbench
from tests.support.doc_blocks import Block, blocks
from tests.testbed import VERSIONS, Cluster

pytestmark = pytest.mark.usually(VERSIONS[0])


@pytest.fixture
def bench(slurm: Cluster) -> Workbench:
    return Workbench(slurm, "documentation")


def _own(text: str) -> str:
    """Return a line for this cluster, where no partition is called ``gpu``."""
    return text.replace("partition=gpu", "partition=main").replace(
        "partition: gpu", "partition: main"
    )


def _type(bench: Workbench, block: Block) -> list[str]:
    """Type the lines of a block; return what each printed."""
    lines = [shlex.split(_own(line)) for _, line in block.commands()]
    return [bench.hpcrun(*words[1:]).stdout for words in lines]


def test_hello_on_two_nodes(bench: Workbench) -> None:
    [block] = [
        block
        for block in blocks("docs/getting-started.md")
        if block.is_shell and block.key.startswith("hpcrun submit hello ")
    ]
    *_, printed = _type(bench, block)
    nodes = {rest.split()[0] for rest in printed.split(" of 4 on ")[1:]}
    assert len(nodes) == 2, printed
    [run] = bench.status("hello")
    assert run["state"] == "completed"


def test_the_script_of_the_readme(bench: Workbench) -> None:
    shown = blocks("README.md")
    files: dict[str, str] = {}
    for block in shown:
        if block.file:
            files[block.file] = block.text if not block.adds else files[block.file] + block.text
    for name, text in files.items():
        bench.write(name, _own(text))
    [block] = [block for block in shown if block.key.startswith("hpcrun plan ")]
    _type(bench, block)
    bench.hpcrun("logs", "-f", "train")
    runs = bench.status("train")
    assert [(run["state"], run["step"]) for run in runs] == [("completed", 100)] * 3

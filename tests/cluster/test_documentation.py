"""The first lines of docs/getting-started.md for a cluster, as printed, on a real Slurm."""

from __future__ import annotations

import shlex

import pytest

from tests.cluster.workbench import Workbench
from tests.support.doc_blocks import blocks
from tests.testbed import VERSIONS, Cluster


@pytest.mark.usually(VERSIONS[0])
def test_hello_on_two_nodes(slurm: Cluster) -> None:
    [block] = [
        block
        for block in blocks("docs/getting-started.md")
        if block.is_shell and block.key.startswith("hpcrun submit hello ")
    ]
    bench = Workbench(slurm, "documentation")
    for _, line in block.commands():
        # The bed has no partition of that name.
        words = shlex.split(line.replace("partition=gpu", "partition=main"))
        printed = bench.hpcrun(*words[1:]).stdout
    nodes = {run_on.split()[0] for run_on in printed.split(" of 4 on ")[1:]}
    assert len(nodes) == 2, printed
    [run] = bench.status("hello")
    assert run["state"] == "completed"

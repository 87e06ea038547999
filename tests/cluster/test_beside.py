"""`exec`, `shell` and `stacks` beside ranks of a training on two nodes, which does not notice."""

from __future__ import annotations

import json

import pytest

from tests.cluster.ward import SINGLE, STAGE, Reference
from tests.support.waiting import until

pytestmark = [pytest.mark.timeout(600), pytest.mark.usually("24.11")]


def test_a_run_is_looked_into_and_ends_as_if_it_were_not(reference: Reference) -> None:
    ward = reference.ward
    (run,) = ward.submit_each(SINGLE, "looked-into", STAGE, [1], config={"pause": 1.0})
    ward.wait_for_step(run, 8)
    where = "import os, socket; print(os.environ['RANK'], socket.gethostname(), os.getcwd())"
    python = ward.cluster.python
    found = []
    for rank in ("0", "1"):
        done = ward.hpcrun("exec", run, "--rank", rank, python, "-c", where)
        found.append(done.stdout.split())
    (status,) = ward.status(run)
    work = str(ward.paths(run).work)
    assert found == [[str(rank), node, work] for rank, node in enumerate(status["nodes"])]
    assert ward.hpcrun("exec", run, "sh", "-c", "exit 3", check=False).returncode == 3

    stacks = json.loads(ward.hpcrun("stacks", run, "--json").stdout)
    assert [(one["rank"], one["node"]) for one in stacks] == [*enumerate(status["nodes"])]
    assert all("survivor.py" in one["text"] for one in stacks)
    told = ward.hpcrun("stacks", run).stdout
    assert "survivor.py" in told

    # A terminal, as `script` makes one: a shell that is typed into.
    typed = f"{python} -m hpcrun shell {run} --rank 1"
    shown = ward.cluster.run(
        ["sh", "-c", f"printf 'echo on $(hostname) as $RANK; exit\\n' | script -qec '{typed}' out"],
        cwd=str(ward.directory),
        env={"HPCRUN_ROOT": str(ward.root), "TERM": "xterm", "SHELL": "/bin/bash"},
    ).stdout
    assert f"beside rank 1 of {run} on {status['nodes'][1]}" in shown
    assert f"on {status['nodes'][1]} as 1" in shown

    for words in (["exec", run, "id"], ["stacks", run]):
        # Root can read other people's runs, and is not to look into them.
        done = ward.cluster.run(
            [python, "-m", "hpcrun", *words],
            env={"HPCRUN_ROOT": str(ward.root)},
            user=False,
            check=False,
        )
        assert done.returncode == 2, done.stdout
        assert "can look into them" in done.stderr

    # A command that does not end by itself goes with the run, and does not hold it.
    slow = ["sh", "-c", f"{python} -m hpcrun exec {run} sleep 500 > slow.log 2>&1 & echo $!"]
    environment = {"HPCRUN_ROOT": str(ward.root)}
    ward.cluster.run(slow, cwd=str(ward.directory), env=environment)
    ward.wait_for_end(run)
    assert ward.kinds(run) == [None]
    reference.assert_same(run)
    until(lambda: not ward.cluster.run(["squeue", "-h"]).stdout.strip(), "the queue is empty", 60)
    done = ward.hpcrun("exec", run, "true", check=False)
    assert done.returncode == 2
    assert "there is no rank to be beside" in done.stderr

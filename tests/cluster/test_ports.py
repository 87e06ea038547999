"""A run that strangers attack: on its own node, and over the network. See tests/security."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.workbench import Workbench
from tests.support.waiting import until
from tests.testbed import Cluster
from tests.testbed.layout import LOGIN

STRANGER = (Path(__file__).parents[1] / "security" / "stranger.py").read_text()
# Takes the names of all ports that a rendezvous would look at, and says so.
TAKE_NAMES = """
import resource, socket, sys
_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
taken = [socket.socket(socket.AF_UNIX) for _ in range(min(most - 100, 15_000))]
for place, name in enumerate(taken):
    name.bind(f"\\0hpcrun-port-{10_000 + place}")
print(len(taken), flush=True)
sys.stdin.read()
"""
RANK = "import os, pathlib, time\nprint(dict(os.environ), flush=True)\n"
RANK += "while not pathlib.Path(os.environ['HPCRUN_DIRECTORY'], 'over').exists(): time.sleep(0.1)\n"
NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
# Shows the environments and command lines of all processes of this user in a node's network.
TOLD = """
here=$(readlink /proc/self/ns/net)
for one in /proc/[0-9]*; do
    [ "$(readlink "$one/ns/net")" = "$here" ] && cat "$one/environ" "$one/cmdline"
done 2>/dev/null
true
"""
# The form of a secret: as many hexadecimal digits as no other word of an environment has.
SECRET = re.compile(rb"[0-9a-f]{64}")


def _other(cluster: Cluster, machine: str, *program: str) -> subprocess.Popen[Any]:
    """Start a program of another user's on a machine."""
    argv = [*NOBODY, cluster.python, "-c", *program]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    return cluster.popen(argv, user=False, machine=machine, cwd="/", **pipes)


@pytest.mark.usually("22.05")
def test_a_run_on_whose_node_and_network_strangers_are(slurm: Cluster) -> None:
    bench = Workbench(slurm, "strangers")
    bench.write("rank.py", RANK)
    spec = {
        "cluster": "bed",
        "entry": ["python", "rank.py"],
        "recovery": {"requeue": False},
        "resources": {"nodes": 2, "time": "00:05:00", "mem": 500},
    }
    directory = bench.root / "strangers" / "runs" / "0"
    with contextlib.ExitStack() as strangers:
        names = [_other(slurm, node, TAKE_NAMES) for node in slurm.nodes]
        for taker in names:
            strangers.enter_context(taker)
            assert taker.stdout is not None
            assert int(taker.stdout.readline()) > 1000
        bench.hpcrun("submit", bench.spec("strangers", spec))
        try:
            until(lambda: [*directory.rglob("rank-00001.log")], "two ranks", 120)
        except TimeoutError:
            raise AssertionError(bench.explain("strangers")) from None
        node = bench.status("strangers")[0]["nodes"][0]
        shown = slurm.on(node, ["sh", "-c", TOLD], user=True).stdout
        found = re.search(r"--supervisor\0([^\0]+):(\d+)", shown)
        assert found, bench.explain("strangers")
        host, port = found.groups()
        attackers = [
            strangers.enter_context(_other(slurm, machine, STRANGER, host, port, str(seed)))
            for seed, machine in enumerate((node, LOGIN))
        ]
        told = [_after(each, 8) for each in attackers]
        # Of the user's own processes: root could read the memory too.
        environments = slurm.on(node, ["sh", "-c", TOLD], user=True).stdout
        slurm.run(["touch", str(directory / "over")])
        bench.hpcrun("logs", "strangers", "-f", "--exit-with-run", check=False)
        for taker in names:
            taker.communicate(timeout=60)
    (run,) = bench.status("strangers")
    assert (run["state"], run["attempt"]) == ("completed", 1), bench.explain("strangers")
    for tried in told:
        assert tried["idle"] > 1000
        assert tried["tries"] > 10
        assert tried["told"] == [""]
    printed = bench.hpcrun("logs", "strangers").stdout
    for text in (environments, printed):
        assert "HPCRUN_START" in text
        assert "HPCRUN_TOKEN" not in text
        assert not SECRET.search(text.encode())
    assert "Traceback" not in bench.explain("strangers")


def _after(stranger: subprocess.Popen[Any], seconds: float) -> dict[str, Any]:
    """Return what a stranger has found after an attack of so many seconds."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        stranger.wait(seconds)
    out, _ = stranger.communicate(timeout=60)
    found: dict[str, Any] = json.loads(out)
    return found

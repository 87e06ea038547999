"""A cluster by hand: ``python -m tests.testbed up | shell | power-off | boot | status | down``."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from .cluster import Cluster
from .layout import existing
from .prerequisites import VERSIONS, Unavailable
from .storage import TENTH
from .terminal import run_in_terminal


def main(argv: list[str] | None = None) -> int:
    """Run one command; return its exit status."""
    options = _parser().parse_args(argv)
    try:
        return int(options.act(options) or 0)
    except Unavailable as error:
        print(f"error: {error}", file=sys.stderr)
        return 3


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.testbed", description=__doc__)
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--slurm", choices=VERSIONS, help="which of several clusters")
    common.add_argument(
        "--name",
        default=os.environ.get("HPCRUN_TESTBED_NAME", "default"),
        help="whose cluster, where several people work on one machine ($HPCRUN_TESTBED_NAME)",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, act: object, text: str) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=text, parents=[common])
        command.set_defaults(act=act)
        return command

    up = add("up", _up, "bring a cluster up and leave it up")
    up.add_argument("--nodes", type=int, default=4)
    up.add_argument("--cred-expire", type=int, default=5, help="requeue delay in seconds")
    up.add_argument("--max-array-size", type=int, default=1001)
    up.add_argument("--storage", default=TENTH, metavar="OPTIONS", help="of nfs(5); '' for a disk")
    up.add_argument("--light", action="store_true", help="as tests have it: HPCRUN_BED uses it")
    up.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="slurm.conf")
    shell = add("shell", _shell, "a shell, or a command, on the login node")
    shell.add_argument("--root", action="store_true", help="as root, not as the user")
    shell.add_argument("--on", default="login", metavar="NODE", help="on a compute node")
    shell.add_argument("command", nargs=argparse.REMAINDER)
    for name, act, text in (
        ("power-off", _power_off, "cut a node's power"),
        ("boot", _boot, "give it power again"),
    ):
        add(name, act, text).add_argument("node")
    link = add("link", _link, "pull or plug a node's cable")
    link.add_argument("node")
    link.add_argument("interface", choices=("eth0", "ib0"))
    link.add_argument("state", choices=("up", "down"))
    add("status", _status, "clusters and their nodes")
    add("reset", _reset, "cancel every job, repair every node")
    add("down", _down, "take it down")
    return parser


def _clusters(options: argparse.Namespace) -> list[Cluster]:
    found = []
    for layout in existing():
        state = json.loads(layout.state.read_text()) if layout.alive() else {}
        if state.get("by_hand") == options.name:
            found.append(Cluster.attach(layout))
    return [one for one in found if options.slurm in (None, one.version)]


def _cluster(options: argparse.Namespace) -> Cluster:
    found = _clusters(options)
    if len(found) != 1:
        versions = ", ".join(cluster.version for cluster in found) or "none"
        raise Unavailable(
            f"up by hand as {options.name!r}: {versions}; start one by `up`, choose by --slurm"
        )
    return found[0]


def _up(options: argparse.Namespace) -> None:
    version = options.slurm or VERSIONS[0]
    if any(cluster.version == version for cluster in _clusters(options)):
        raise Unavailable(
            f"Slurm {version} is up already as {options.name!r}: use it, or give yours a --name"
        )
    cluster = Cluster(
        version,
        options.nodes,
        cred_expire=options.cred_expire,
        max_array_size=options.max_array_size,
        storage=options.storage,
        light=options.light,
        extra=dict(item.split("=", 1) for item in options.set),
    )
    cluster.up(by_hand=options.name)
    print(f"Slurm {version}, {len(cluster.nodes)} nodes, up in {cluster.start_seconds:.1f} s")
    print(f"shared file system: {cluster.root}\nlogs: {cluster.layout.logs}")
    print(f"a shell on its login node: python -m tests.testbed shell --slurm {version}")


def _shell(options: argparse.Namespace) -> int:
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    cluster = _cluster(options)
    choice = {"user": not options.root, "machine": options.on}
    # Seen from inside, the work tree is where it is; start there if that is where we are.
    here = str(Path.cwd())
    visible = cluster.run(["test", "-x", here], check=False).returncode == 0
    cwd = here if visible else None
    if command and not sys.stdin.isatty():
        return cluster.popen(command, cwd=cwd, **choice).wait()
    return run_in_terminal(cluster, command or ["bash", "-l"], cwd=cwd, **choice)


def _power_off(options: argparse.Namespace) -> None:
    _cluster(options).power_off(options.node)


def _boot(options: argparse.Namespace) -> None:
    _cluster(options).boot(options.node)


def _link(options: argparse.Namespace) -> None:
    _cluster(options).link(options.node, options.interface, up=options.state == "up")


def _status(options: argparse.Namespace) -> None:
    for cluster in _clusters(options):
        print(f"Slurm {cluster.version} at {cluster.layout.base}")
        for node, state in cluster.node_states().items():
            print(f"  {node}  {state if cluster.is_on(node) else state + ' (no power)'}")


def _reset(options: argparse.Namespace) -> None:
    _cluster(options).reset()


def _down(options: argparse.Namespace) -> None:
    _cluster(options).down()


if __name__ == "__main__":
    sys.exit(main())

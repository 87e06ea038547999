"""A stand-in for ssh and for the host behind it: this machine, with another home.

The real OpenSSH, with a server behind it, is in tests/cluster/test_laptop.py; here it is what a
command says and brings that is looked at, many times.
"""

from __future__ import annotations

from pathlib import Path

# Options of one word that take another; -G asks for the configuration; -O is of a master.
_PROGRAM = """#!/bin/sh
printf '%s\\n' "$*" >>{log}
while [ $# -gt 0 ]; do
  case "$1" in
    -o|-L) shift 2 ;;
    -G|-O) exit 0 ;;
    -*) shift ;;
    *) break ;;
  esac
done
[ "$1" = {host} ] || {{ echo "ssh: Could not resolve hostname $1" >&2; exit 255; }}
shift
cd {home} && exec env -i HOME={home} SHELL=/bin/bash PATH={path} LANG=C.UTF-8 TERM=dumb sh -c "$*"
"""
HOST = "far"
PATH = "/usr/local/bin:/usr/bin:/bin"


class FarHost:
    """A home of another machine, and the ssh that leads there."""

    def __init__(self, directory: Path, path: str = PATH) -> None:
        self.home = directory / "far home"
        self.home.mkdir(parents=True)
        self.log = directory / "ssh.log"
        self.program = directory / "ssh"
        quoted = {"home": f"'{self.home}'", "log": f"'{self.log}'", "host": HOST, "path": path}
        self.program.write_text(_PROGRAM.format(**quoted))
        self.program.chmod(0o755)

    @property
    def environment(self) -> dict[str, str]:
        """What a command needs to use it."""
        return {"HPCRUN_SSH": str(self.program)}

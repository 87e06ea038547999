"""Answers to TAB from a login node: in a moment, without a question, or not at all."""

from __future__ import annotations

import subprocess

from hpcrun.errors import HpcrunError
from hpcrun.tools.remote import own_copy
from hpcrun.tools.remote.login_node import LoginNode, program
from hpcrun.tools.remote.on_command import host_of

_SECONDS = 5.0


def ask(cluster: str, line: str, current: str | None) -> list[str]:
    """Return the rows for a line up to the cursor, as that hpcrun prints them."""
    try:
        destination, _ = host_of(cluster)
        with LoginNode(destination, quick=True) as node:
            name, source = program()
            far = node.ask("hello", source, program=name, copy=own_copy.digest())
            if not (far["has_copy"] or far["own"]):
                return []
            variables = {"_HPCRUN_COMPLETE": "1", "COMP_WORDS": line}
            if current is not None:
                variables["COMP_CURRENT"] = current
            task = {
                "words": [],
                "cwd": far["home"],
                "copy": far["copy"] if far["has_copy"] else "",
                "variables": variables,
            }
            far_program = far["program"], far["python"]
            process, mark = node.start(*far_program, task, terminal=False, reads=False)
            output, _ = process.communicate(timeout=_SECONDS)
    except (HpcrunError, OSError, subprocess.SubprocessError):
        return []
    _, _, rows = output.partition(mark + b"\n")
    return rows.decode("utf-8", "replace").splitlines()

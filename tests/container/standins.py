"""Stand-ins for Apptainer and Pyxis, which cannot be had here: they refuse what those do not know.

The options are those of Apptainer's and Pyxis's manuals. What Apptainer is to run is run on this
machine, so that a whole run can go through it; Pyxis's srun is only read.
"""

from __future__ import annotations

import argparse
import stat
import sys
import textwrap
from pathlib import Path

_APPTAINER = """
#!{python}
import argparse, os
parser = argparse.ArgumentParser(prog="apptainer", allow_abbrev=False)
exec_ = parser.add_subparsers(required=True).add_parser("exec", allow_abbrev=False)
for flag in ("--no-home", "--nv", "--rocm", "--cleanenv", "--contain", "--writable-tmpfs"):
    exec_.add_argument(flag, action="store_true")
for option in ("--bind", "--env", "--pwd", "--no-mount", "--home"):
    exec_.add_argument(option, action="append", default=[])
exec_.add_argument("image")
exec_.add_argument("words", nargs=argparse.REMAINDER)
told = parser.parse_args()
for bind in told.bind:
    source, _, rest = bind.partition(":")
    assert os.path.exists(source), f"no {{source}} to bind"
    assert rest.partition(":")[0].startswith("/"), bind
assert os.path.exists(told.image), f"no image {{told.image}}"
os.environ["PATH"] = "/usr/local/bin:/usr/bin:/bin"
os.environ["APPTAINER_CONTAINER"] = told.image
os.execvp(told.words[0], told.words)
"""


def apptainer(directory: Path) -> Path:
    """Write a program ``apptainer`` that runs the command of its ``exec`` on this machine."""
    path = directory / "apptainer"
    path.write_text(textwrap.dedent(_APPTAINER.format(python=sys.executable)).lstrip())
    path.chmod(path.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
    return path


def read_pyxis(options: list[str]) -> argparse.Namespace:
    """Read Pyxis's options of srun; exits with an error at one that it does not have."""
    parser = argparse.ArgumentParser(prog="srun", allow_abbrev=False)
    for option in ("image", "mounts", "workdir", "name", "save", "env"):
        parser.add_argument(f"--container-{option}")
    for flag in ("mount-home", "remap-root", "writable", "readonly", "entrypoint"):
        parser.add_argument(f"--container-{flag}", action="store_true")
        parser.add_argument(f"--no-container-{flag}", action="store_true")
    return parser.parse_args(options)

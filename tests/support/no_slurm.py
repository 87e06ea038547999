"""The machine's own Slurm, hidden from the tests: on a login node they would ask the site's.

Those on a real Slurm use the bed's, whose machines have an environment of their own.
"""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

_CLIENTS = (
    *("sacct", "sacctmgr", "salloc", "sattach", "sbatch", "sbcast", "scancel", "scontrol"),
    *(
        "scrontab",
        "sdiag",
        "sinfo",
        "sprio",
        "squeue",
        "sreport",
        "srun",
        "sshare",
        "sstat",
        "strigger",
    ),
)
# What a job, a profile or a habit leaves in a shell; hpcrun's own, which name the user's roots.
_LEFT = re.compile(
    r"(SLURM|SBATCH|SALLOC|SRUN|SINFO|SQUEUE|SACCT|SCONTROL|PMI)|HPCRUN_(ROOT|CLUSTERS)$"
)


def hide() -> list[Path]:
    """Have this process and its children find no client of Slurm and nothing of a job.

    A directory of PATH with such clients is replaced by one that links to all else in it. Returns
    those, which the caller removes at its end.
    """
    for name in filter(_LEFT.match, list(os.environ)):
        del os.environ[name]
    shown, made = [], []
    for entry in os.environ.get("PATH", os.defpath).split(os.pathsep):
        if entry and any((Path(entry) / client).exists() for client in _CLIENTS):
            made.append(_without_clients(Path(entry)))
            entry = str(made[-1])
        shown.append(entry)
    os.environ["PATH"] = os.pathsep.join(shown)
    return made


def _without_clients(directory: Path) -> Path:
    shown = Path(tempfile.mkdtemp(prefix="hpcrun-no-slurm-"))
    # Some tests start programs as another user.
    shown.chmod(0o755)
    for program in directory.iterdir():
        if program.name not in _CLIENTS:
            (shown / program.name).symlink_to(program)
    return shown

"""Shell scripts of the user's in a job: what they find, and ``batch_script`` around the ranks."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcrun.errors import EXIT_FAILED, EXIT_OK, HpcrunError
from hpcrun.run.protocol.launch import Launch
from hpcrun.run.protocol.output import say
from hpcrun.shared_dataclass import dataclass
from hpcrun.state import files
from hpcrun.state.layout import AttemptPaths
from hpcrun.state.spec.blocks import RANKS

# The directory in which `batch_script` started the ranks.
DIRECTORY = "HPCRUN_BATCH_DIRECTORY"
# As with Slurm's batch scripts, nothing that it left in the background outlives it.
_ENTER = 'cd -- "$0" || exit; "$@"; code=$?; trap "" TERM; kill 0; exit $code'
_LONGEST_LINE = 4096


def batch_variables(launch: Launch, inherited: Mapping[str, str]) -> dict[str, str | None]:
    """Return variables that differ from those of hpcrun's own batch script; None for no such.

    The job starts in the run's working directory, as Slurm's does in that of the submission. What
    nobody asked for is not there; nor is hpcrun's own array.
    """
    found: dict[str, str | None] = {
        name: None for name in inherited if name.startswith("SLURM_ARRAY_")
    }
    if launch.resources.cpus_per_task is None:
        found |= dict.fromkeys(("SLURM_CPUS_PER_TASK", "SLURM_TRES_PER_TASK"))
    if launch.resources.ntasks_per_node is None:
        names = ("SLURM_NTASKS_PER_NODE", "SLURM_NTASKS", "SLURM_NPROCS")
        found |= dict.fromkeys(names)
    own = launch.directory_of(0)
    if launch.has_rank_directories:
        own = launch.run_paths.work / launch.working_directory
    # `clear` under `set -e` ends a script without it, which sbatch takes along from a terminal.
    return {"TERM": inherited.get("TERM") or "xterm", **found, "SLURM_SUBMIT_DIR": str(own)}


@dataclass(frozen=True)
class BatchScript:
    """The shell file of one attempt, as it lies in the working directory."""

    name: str
    """Its path, relative to the working directory."""
    variables: dict[str, str | None]
    """What its environment has beyond that of this process; None for what it has not."""
    attempt: AttemptPaths

    @classmethod
    def of(
        cls, spec: Mapping[str, Any], attempt: AttemptPaths, *, ranks: int = 1
    ) -> BatchScript | None:
        """Return the one that a run's spec names; None without one.

        Raise HpcrunError for several ``ranks`` without srun, which it would start.
        """
        if not (name := spec.get("batch_script")):
            return None
        if ranks > 1:
            found = f"batch_script: {name} starts {ranks} ranks, which takes srun"
            raise HpcrunError(found, hint="submit it to Slurm, or run one rank")
        launch = Launch.read(attempt.launch)
        return cls(name, batch_variables(launch, os.environ), attempt)

    def around(self, ranks: Sequence[str]) -> list[str]:
        """Return the command that runs the file, whose line starts ``ranks``."""
        import shlex

        starter = self.attempt.directory / "ranks.sh"
        package = os.environ.get("PYTHONPATH", "").split(os.pathsep)[0]
        lines = (
            "# Written by hpcrun: starts the ranks of this attempt, and waits for them.",
            f'export {DIRECTORY}="$PWD"',
            # The script may have set another path.
            f"export PYTHONPATH={shlex.quote(package)}${{PYTHONPATH:+:$PYTHONPATH}}",
            f"{shlex.join(ranks)} || exit",
            f": >{shlex.quote(str(self._end_mark))}",
        )
        files.write_bytes(starter, "".join(f"{line}\n" for line in lines).encode())
        given = {**self.variables, RANKS: str(starter)}
        gone = [f"--unset={name}" for name, value in given.items() if value is None]
        new = [f"{name}={value}" for name, value in given.items() if value is not None]
        directory = str(given["SLURM_SUBMIT_DIR"])
        # Another shell may drop its exported functions, such as `module`.
        enter = ["bash", "-c", _ENTER, directory]
        return ["env", *gone, *new, *enter, *self._shell(Path(directory)), f"./{self.name}"]

    @property
    def _end_mark(self) -> Path:
        """The file that is there once the ranks have ended well."""
        return self.attempt.directory / "ranks-ended"

    def _shell(self, directory: Path) -> list[str]:
        """Return the words of its first line, ``#!/bin/bash -l``; bash without one."""
        try:
            with open(directory / self.name, "rb") as stream:
                first = stream.readline(_LONGEST_LINE).decode(errors="replace")
        except OSError:
            return ["bash"]
        return (first[2:].strip().split(None, 1) if first.startswith("#!") else []) or ["bash"]

    def exit_code(self, code: int | None) -> int | None:
        """Return the exit code of the ranks from that of their shell file; None before its end.

        A run is done when its ranks are: what follows them may end badly, which is said.
        """
        if code is None or (code != 0) != self._end_mark.exists():
            return code
        if code:
            say(f"batch_script: {self.name} ended with exit code {code}, after its ranks were done")
            return EXIT_OK
        say(f'batch_script: its ranks have not ended well; has it the line sh "${RANKS}" || exit?')
        return EXIT_FAILED

"""Variables that a script exports, as ``environment`` of a spec."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, field

from hpcrun.convert.draft.spec_words import escaped
from hpcrun.convert.line_fates import CARRIED, LEFT, NOT_NEEDED
from hpcrun.convert.script.walk_state import WalkResult
from hpcrun.convert.shell.shell_values import MARK, Unknowns
from hpcrun.policy import secret_names

OWN = frozenset(
    {
        *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "MASTER_ADDR"),
        *("MASTER_PORT", "GROUP_RANK", "HOSTNAMES", "COUNT_NODE", "NNODES", "NUM_NODES"),
        *("GPUS_PER_NODE", "NPROC_PER_NODE", "NUM_PROCESSES", "N_GPUS", "NGPUS", "NUM_GPUS"),
        *("RDZV_HOST", "RDZV_PORT", "HOSTFILE", "HOST_FILE", "DLTS_HOSTFILE", "NODELIST"),
        *("WORKERS", "PDSH_RCMD_TYPE", "HEAD_NODE", "HEAD_NODE_IP", "NPROCS", "NTASKS"),
    }
)
_FABRIC = {
    **dict.fromkeys(("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"), "interface"),
    "NCCL_IB_HCA": "hca",
}
_SLURM = re.compile(r"(?:SLURM|SBATCH|SRUN|PMI|HPCRUN)_")
_PATHS = frozenset({"PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "LD_PRELOAD", "LIBRARY_PATH", "CPATH"})
_BRINGS = re.compile(
    r"(?:module|ml|source|\.|conda|mamba|micromamba|spack|eval|if|activate)(?=\s|\Z)|export PATH="
)
_LAUNCHES = re.compile(r"torchrun|accelerate|deepspeed|torch\.distributed|srun|python|--\w")


@dataclass
class JobEnvironment:
    """The environment of a spec, and what became of each exported variable."""

    variables: dict[str, str] = field(default_factory=dict)
    setup: list[tuple[str, int]] = field(default_factory=list)
    """Lines, each with the line of the script."""
    fates: dict[str, tuple[str, str, str | None]] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)

    @property
    def has_programs(self) -> bool:
        """Whether the lines of setup may bring another Python into PATH."""
        return any(_BRINGS.match(text) for text, _ in self.setup)


def environment(walk: WalkResult, used: Collection[str]) -> JobEnvironment:
    """Return the environment that a script makes; ``used`` are variables of its program's line."""
    found = JobEnvironment()
    lines = [(text, node.line) for text, node in walk.setup]
    for name, node in walk.exported.items():
        value = walk.variables.get(name)
        if isinstance(value, list):
            found.fates[name] = LEFT, "bash exports no arrays", None
            continue
        if value is None:
            found.fates[name] = _of_shell(name)
            if found.fates[name][0] == CARRIED:
                found.variables[name] = f"${{oc.env:{name}}}"
        else:
            fate, line = _fate(name, value, walk.unknowns, name in used, found)
            found.fates[name] = fate
            if line is not None:
                lines.append((line, node.line))
        found.lines[name] = node.line
    found.setup = sorted(lines, key=lambda one: one[1])
    return found


def _of_shell(name: str) -> tuple[str, str, str | None]:
    if name in OWN or _SLURM.match(name):
        return NOT_NEEDED, "hpcrun gives it to every rank", None
    if secret_names.is_name(name):
        return LEFT, *_secret(name)
    return CARRIED, f"environment.variables.{name}, from your shell", None


def _secret(name: str) -> tuple[str, str]:
    what = f"{name} is a secret, and a spec is stored with the job"
    return what, "put it into a file of mode 0600, named in environment.secrets_file"


def _fate(
    name: str, value: str, unknowns: Unknowns, is_used: bool, found: JobEnvironment
) -> tuple[tuple[str, str, str | None], str | None]:
    """Return what becomes of a variable, and the line of setup that sets it."""
    kinds = {one.kind for one in unknowns.of(value)}
    if name in _FABRIC:
        shown = unknowns.shown(value)
        what = "hpcrun finds the fast network of each node"
        key = "fabric.hca" if _FABRIC[name] == "hca" else "fabric.fast_interface"
        return (NOT_NEEDED, f"{what}; {key} of the cluster profile names it ({shown})", None), None
    if name in OWN:
        return (NOT_NEEDED, "hpcrun gives its ranks what they need to meet", None), None
    if name == "CUDA_VISIBLE_DEVICES":
        return (NOT_NEEDED, "Slurm gives each job its GPUs", None), None
    if name == "OMP_NUM_THREADS" and not value.isdigit():
        return (NOT_NEEDED, "hpcrun sets it to the CPUs of a rank", None), None
    if _SLURM.match(name):
        what = "hpcrun keeps Slurm's own variables from its steps"
        return (NOT_NEEDED, what, None), None
    if secret_names.is_name(name) or any(True for _ in secret_names.places({name: value})):
        return (LEFT, *_secret(name)), None
    if is_used and (_LAUNCHES.search(value) and " " in value.strip()):
        return (CARRIED, "the program's line", None), None
    if "rank" in kinds:
        what = "it differs from rank to rank"
        return (LEFT, what, "the program finds RANK, LOCAL_RANK and NODE_RANK"), None
    if "argument" in kinds:
        found.variables[name] = "???"
        how = f"give environment.variables.{name}=VALUE"
        return (LEFT, "it is an argument of the script", how), None
    if name in _PATHS or kinds - {"environment", "scratch"} or _refers_to_itself(value, unknowns):
        line = f'export {name}="{_in_quotes(value, unknowns)}"'
        return (CARRIED, "environment.setup", None), line
    found.variables[name] = _value(value, unknowns)
    return (CARRIED, f"environment.variables.{name}", None), None


def _refers_to_itself(value: str, unknowns: Unknowns) -> bool:
    return any(one.name in _PATHS for one in unknowns.of(value))


def _in_quotes(value: str, unknowns: Unknowns) -> str:
    """Return a value for double quotes of the shell, in which unknown parts are expanded."""
    parts = MARK.split(value)
    return "".join(
        unknowns.found[int(part)].text if at % 2 else re.sub(r'([\\"`$])', r"\\\1", part)
        for at, part in enumerate(parts)
    ).replace("\n", " ")


def _value(value: str, unknowns: Unknowns) -> str:
    parts: list[str] = []
    for at, part in enumerate(MARK.split(value)):
        if at % 2 == 0:
            parts.append(escaped(part))
            continue
        one = unknowns.found[int(part)]
        if one.kind == "scratch":
            parts.append("${hpcrun:scratch}")
        elif one.default is None:
            parts.append(f"${{oc.env:{one.name}}}")
        elif re.fullmatch(r"[\w./:@+-]*", one.default):
            parts.append(f"${{oc.env:{one.name},{one.default}}}")
        else:
            parts.append(escaped(MARK.sub("", one.default)))
    return "".join(parts)

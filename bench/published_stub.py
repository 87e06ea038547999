"""One program in place of all that published scripts start: it records what it was given."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from tests.cluster.workbench import Workbench

PYTHON = "python-of-hpcrun"
_NAMES = (
    *("python", "python3", "torchrun", "accelerate", "deepspeed", "mpirun", "mpiexec", "kernprof"),
    *("module", "ml", "conda", "nvidia-smi", "dcgmi", "get_free_port", "parallel"),
    *("apptainer", "singularity", "singularity_wrapper", "shifter", "clear", "git", "trl"),
    *("huggingface-cli", "pip", "nproc"),
)
_PROGRAM = """#!{python}
import json, os, resource, sys
name = "-".join([os.environ.get("SLURM_JOB_ID", "0"), str(os.getpid()), os.uname().nodename])
limits = {{k: resource.getrlimit(v) for k, v in vars(resource).items() if k.startswith("RLIMIT_")}}
record = {{"argv": [os.path.basename(sys.argv[0]), *sys.argv[1:]], "directory": os.getcwd(),
    "environment": dict(os.environ), "limits": limits, "umask": os.umask(0)}}
with open({records!r} + "/" + name + ".json", "w") as stream:
    json.dump(record, stream)
"""
# What differs between any two jobs, or what hpcrun gives to all ranks (docs/frameworks.md).
_OWN = re.compile(
    r"SLURM.*|SRUN_.*|SBATCH.*|PMI.*|PET_.*|HPCRUN_.*|TORCHELASTIC_.*|WANDB_(?:RUN_ID|RESUME)|_|SHLVL|OLDPWD"
    r"|(?:LOCAL_|NODE_|GROUP_|ROLE_)?(?:RANK|WORLD_SIZE|NAME)|MASTER_(?:ADDR|PORT)|PYTHONUNBUFFERED"
    r"|DS_ACCELERATOR|ACCELERATE_USE_CPU|T(?:ORCHINDUCTOR|RITON)_CACHE_DIR|TORCH_EXTENSIONS_DIR"
    r"|LC_CTYPE|HOSTNAME|ENVIRONMENT|TMPDIR|PYTHONPATH|LS_COLORS|LESS.*|PS1"
)
# Options that hpcrun gives in their place, and a program whose answer only makes a rendezvous.
_RENDEZVOUS = re.compile(r" --?(?:rdzv_\w+|nnodes|node_rank|master_\w+)(?:=| )\S+")
_MAKES_PORT = "get_free_port"
_DEFAULTS = re.compile(r"OMP_NUM_THREADS|(?:GLOO|NCCL)_SOCKET_IFNAME|NCCL_IB_HCA")


def install(directory: Path, python: str) -> Path:
    """Write the program under all names; return their directory."""
    home, shown = directory / "environment", directory / "records"
    stubs = home / "bin"
    if not stubs.is_dir():
        stubs.mkdir(parents=True)
        shown.mkdir()
        for name in _NAMES:
            path = stubs / name
            path.write_text(_PROGRAM.format(python=python, records=str(shown)))
            path.chmod(0o755)
        # hpcrun's own Python, whose directory comes first on PATH in a job.
        own = Path(python).resolve()
        (stubs / PYTHON).symlink_to(own)
        (home / "pyvenv.cfg").write_text(f"home = {own.parent}\n")
    return stubs


def beside(directory: Path, stubs: Path, script: str) -> None:
    """Write the program where a script starts it by a relative path, ``./direct.out``."""
    for name in {*re.findall(r"(?<![\w.$}/])\./([\w.-]+)(?![\w./-])", script)} - {"stubs"}:
        path = directory / name
        if not path.exists():
            path.write_text((stubs / "python").read_text())
            path.chmod(0o755)


def environment(bench: Workbench, stubs: Path) -> dict[str, str]:
    """Return the variables of the shell that submits: a login's on a terminal, stubs in PATH."""
    asked = bench.cluster.run(["sh", "-c", "cd; pwd; id -un; echo $SLURM_CONF"]).stdout.split("\n")
    found = {"HOME": asked[0], "USER": asked[1], "LOGNAME": asked[1], "SLURM_CONF": asked[2]}
    return {**found, "TERM": "xterm", "PATH": f"{stubs}:/usr/local/bin:/usr/bin:/bin"}


def records(directory: Path, job: str) -> list[dict[str, Any]]:
    """Return what the programs of a job recorded."""
    found = (directory / "records").glob(f"{job}-*.json")
    read = [json.loads(path.read_text()) for path in sorted(found)]
    return [one for one in read if one["argv"] != [_MAKES_PORT]]


def difference(
    one: list[dict[str, Any]], other: list[dict[str, Any]], places: dict[str, str]
) -> list[str]:
    """Return how the records of a converted script differ from those of the script itself."""
    left, right = (sorted(_shown(each, places) for each in both) for both in (one, other))
    if [argv for argv, _ in left] != [argv for argv, _ in right]:
        missing = [argv for argv, _ in left if argv not in [words for words, _ in right]]
        more = [argv for argv, _ in right if argv not in [words for words, _ in left]]
        counts = f"{len(left)} programs, and {len(right)}"
        return [f"{counts}; not started: {missing[:5]}; started besides: {more[:5]}"]
    found = set()
    for (argv, before), (_, after) in zip(left, right, strict=True):
        old, new = json.loads(before), json.loads(after)
        for name in {*old, *new}:
            is_default = name not in old and _DEFAULTS.fullmatch(name)
            if old.get(name) != new.get(name) and not is_default:
                found.add(f"{argv[:60]}: {name}: {old.get(name)!r} -> {new.get(name)!r}"[:400])
    return sorted(found)[:40]


def _shown(record: dict[str, Any], places: dict[str, str]) -> tuple[str, str]:
    own = {k: v for k, v in record["environment"].items() if not _OWN.fullmatch(k)}
    if "PATH" in own:
        own["PATH"] = ":".join(dict.fromkeys(own["PATH"].split(":")))
    shown = {**own, "directory": record["directory"], "umask": record["umask"]}
    shown |= record["limits"]
    words = " ".join(record["argv"])
    if record["argv"][0] == "torchrun":
        words = _RENDEZVOUS.sub("", words)
    texts = [words, json.dumps(shown, sort_keys=True)]
    job = record["environment"].get("SLURM_JOB_ID", "0")
    for place, name in places.items():
        texts = [text.replace(place, name) for text in texts]
    texts = [re.sub(rf"\b{job}\b", "JOB", text) for text in texts]
    return texts[0], texts[1]

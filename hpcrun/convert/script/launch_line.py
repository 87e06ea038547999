"""Reads a command line that starts a program: srun, launchers, containers, Python, and the rest."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import PurePath

from hpcrun.convert.shell.shell_values import MARK

_PYTHON = re.compile(r"python[0-9.]*")
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
# Short options of srun -> the long ones; those in `_SRUN_FLAGS` take no value.
_SRUN_SHORT = {
    **{"n": "ntasks", "N": "nodes", "c": "cpus-per-task", "w": "nodelist", "x": "exclude"},
    **{"p": "partition", "t": "time", "J": "job-name", "o": "output", "e": "error", "i": "input"},
    **{"m": "distribution", "G": "gpus", "A": "account", "C": "constraint", "D": "chdir"},
    **{"u": "unbuffered", "l": "label", "K": "kill-on-bad-exit", "W": "wait", "Q": "quiet"},
    **{"v": "verbose", "s": "oversubscribe", "k": "no-kill", "O": "overcommit", "X": "x11"},
    **{"B": "extra-node-info", "d": "dependency", "I": "immediate", "L": "licenses", "q": "qos"},
    **{"b": "begin", "H": "hold", "T": "threads", "r": "relative", "E": "preserve-env"},
}
_SRUN_FLAGS = frozenset(
    {
        *("unbuffered", "label", "kill-on-bad-exit", "quiet", "verbose", "oversubscribe"),
        *("no-kill", "overcommit", "x11", "exclusive", "overlap", "exact", "multi-prog", "pty"),
        *("spread-job", "contiguous", "preserve-env", "hold", "immediate", "use-min-nodes"),
        *("disable-status", "no-container-mount-home", "container-mount-home"),
        *("container-writable", "container-remap-root", "no-container-remap-root"),
    }
)
SRUN_SHAPE = frozenset(
    {
        *("ntasks", "nodes", "cpus-per-task", "ntasks-per-node", "gpus", "gpus-per-node"),
        *("gpus-per-task", "gres", "tasks-per-node", "mem", "mem-per-cpu", "mem-per-gpu"),
    }
)
_SRUN_OWN = frozenset(
    {
        *("unbuffered", "label", "kill-on-bad-exit", "wait", "quiet", "verbose", "jobid"),
        *("output", "error", "input", "mpi", "overlap", "exact", "job-name", "open-mode"),
        *("export", "no-kill", "time", "partition", "account", "exclusive", "qos", "threads"),
        *("constraint", "chdir", "preserve-env", "disable-status", "pty", "signal"),
    }
)
# Options of launchers without a value; all others take one.
_TORCHRUN_FLAGS = frozenset({"standalone", "module", "m", "no-python", "run-path", "use-env"})
_DEEPSPEED_FLAGS = frozenset(
    {
        *("module", "no-python", "no-local-rank", "no-ssh", "no-ssh-check", "force-multi"),
        *("save-pid", "enable-each-rank-log", "bind-cores-to-rank", "elastic-training"),
    }
)
_ACCELERATE_FLAGS = frozenset(
    {
        *("cpu", "multi-gpu", "tpu", "ipex", "use-xpu", "use-deepspeed", "use-fsdp"),
        *("use-megatron-lm", "use-tpu", "module", "m", "no-python", "debug", "quiet"),
        *("same-network", "use-mps-device", "enable-cpu-affinity", "tpu-cluster"),
    }
)
_MPI_FLAGS = frozenset({"oversubscribe", "allow-run-as-root", "report-bindings", "tag-output"})
_CONTAINERS = {
    **dict.fromkeys(("singularity", "apptainer", "singularity_wrapper"), ("exec", "run")),
    **{"apptainer_wrapper": ("exec", "run"), "shifter": (), "podman-hpc": ("run", "exec")},
    **{"ch-run": (), "enroot": ("start",), "docker": ("run", "exec")},
}
_CONTAINER_FLAGS = frozenset(
    {
        *("--nv", "--rocm", "--cleanenv", "-e", "--contain", "-c", "--containall", "-C"),
        *("--no-home", "--writable-tmpfs", "--fakeroot", "-f", "--userns", "-u", "--rm", "--gpu"),
        *("--nvccli", "--ipc", "--pid", "--net", "--writable", "-w", "--compat", "-i", "-t"),
        *("--no-mount-tmp", "--unsquash", "--privileged", "-it", "--mpi", "--cuda-mpi"),
    }
)
# Words that start the command after them, and their options that take a value.
_PREFIXES = {
    "time": (),
    "nohup": (),
    "exec": (),
    "command": (),
    "stdbuf": ("-i", "-o", "-e"),
    "nice": ("-n",),
    "ionice": ("-c", "-n"),
    "timeout": ("-s", "-k", "--signal", "--kill-after"),
    "setsid": (),
    "sudo": (),
    "catchsegv": (),
}


@dataclass
class ProgramLaunch:
    """The program that a command line starts, and what starts it."""

    wrapper: list[str] = field(default_factory=list)
    """Words of a container or of numactl before the interpreter."""
    python: str | None = None
    """Python as it is called; None for another program."""
    python_options: list[str] = field(default_factory=list)
    module: str | None = None
    target: str = ""
    """The script, or the program that is no Python."""
    args: list[str] = field(default_factory=list)
    launcher: str = ""
    """``torchrun``, ``deepspeed``, ``accelerate``, ``composer``, ``mpirun`` or empty."""
    options: dict[str, str] = field(default_factory=dict)
    """The launcher's options."""
    steps: dict[str, str] = field(default_factory=dict)
    """srun's options; empty without srun."""
    is_step: bool = False
    environment: dict[str, str] = field(default_factory=dict)
    """Assignments before the command."""
    not_needed: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    """What could not be carried over, and what to do."""
    inner_script: str | None = None
    """The text of ``bash -c``, which is still to be read."""

    @property
    def score(self) -> float:
        """How much it looks like the training: launchers before srun, srun before the rest."""
        if self.launcher:
            return 4
        if self.python is not None:
            return 3 if self.is_step else 2
        return 1.5 if self.is_step else 1


def read(words: Sequence[str]) -> ProgramLaunch | None:
    """Return what a command line starts; None for no program at all."""
    found = ProgramLaunch()
    rest = list(words)
    for _ in range(40):
        if not rest:
            return None
        first = PurePath(rest[0]).name
        if assigned := _ASSIGNMENT.fullmatch(rest[0]):
            found.environment[assigned[1]] = assigned[2]
            rest = rest[1:]
        elif first == "env":
            rest = _env(rest[1:])
        elif first in _PREFIXES:
            rest = _prefix(found, first, rest[1:])
        elif first == "srun":
            rest = _srun(found, rest[1:])
        elif first in (
            "mpirun",
            "mpiexec",
            "mpiexec.hydra",
            "prun",
            "jsrun",
            "aprun",
            "horovodrun",
        ):
            found.launcher = "mpirun"
            rest = _options(found, rest[1:], _MPI_FLAGS, single=True)
        elif first in _CONTAINERS:
            rest = _container(found, first, rest)
        elif first in ("numactl", "taskset"):
            rest = _numactl(found, rest)
        elif first in ("uv", "poetry", "pixi", "pipenv", "conda", "mamba", "micromamba") and (
            rest[1:2] == ["run"]
        ):
            rest = _runner(found, rest)
        elif first in ("bash", "sh", "zsh", "ksh", "dash") and (at := _script_at(rest)):
            found.inner_script = rest[at] if at < len(rest) else ""
            found.args = rest[at + 1 :]
            return found
        else:
            return _program(found, rest)
    return None


def _script_at(rest: Sequence[str]) -> int:
    """Return the index of the script of ``bash -c``; 0 where there is none."""
    for at, word in enumerate(rest[1:], 1):
        if not word.startswith("-"):
            return 0
        if re.fullmatch(r"-[a-z]*c[a-z]*", word):
            return at + 1
    return 0


def _env(rest: list[str]) -> list[str]:
    while rest and rest[0].startswith("-"):
        rest = rest[2:] if rest[0] in ("-u", "-C", "-S") else rest[1:]
    return rest


def _prefix(found: ProgramLaunch, first: str, rest: list[str]) -> list[str]:
    while rest and rest[0].startswith("-"):
        rest = rest[2:] if rest[0] in _PREFIXES[first] else rest[1:]
    if first == "timeout" and rest:
        found.lost.append(f"timeout {rest[0]}: resources.time limits a run")
        rest = rest[1:]
    return rest


def _srun(found: ProgramLaunch, rest: list[str]) -> list[str]:
    found.is_step = True
    while rest and rest[0].startswith("-") and rest[0] != "--":
        word, rest = rest[0], rest[1:]
        name, equals, value = word.lstrip("-").partition("=")
        if not word.startswith("--"):
            name, value = _SRUN_SHORT.get(word[1:2], word[1:2]), word[2:].removeprefix("=")
            equals = value
        if not equals and name not in _SRUN_FLAGS and rest:
            value, rest = rest[0], rest[1:]
        name = "ntasks-per-node" if name == "tasks-per-node" else name
        shown = f"srun --{name}" + (f"={value}" if value else "")
        if name in SRUN_SHAPE:
            found.steps[name] = value
        elif name in _SRUN_OWN:
            found.not_needed.append(shown)
            if name == "export" and (given := _exported(value)):
                found.environment.update(given)
        elif name.startswith(("container-", "no-container")):
            how = "name a wrapper in the entry, such as [apptainer, exec, IMAGE, python, …]"
            found.lost.append(f"{shown}: hpcrun starts no containers by srun; {how}")
        else:
            how = "hpcrun starts one step a node and the ranks in it"
            if name.endswith("bind") or name == "distribution":
                how += "; a wrapper such as numactl can bind them"
            found.lost.append(f"{shown}: {how}")
    return rest[1:] if rest[:1] == ["--"] else rest


def _exported(value: str) -> dict[str, str]:
    pairs = (one.partition("=") for one in value.split(","))
    return {name: given for name, equals, given in pairs if equals}


def _options(
    found: ProgramLaunch, rest: list[str], flags: frozenset[str], single: bool = False
) -> list[str]:
    """Take a launcher's options, with names as they are written with dashes."""
    while rest and rest[0].startswith("-") and rest[0] != "-":
        word, rest = rest[0], rest[1:]
        if word == "--":
            break
        name, equals, value = word.lstrip("-").partition("=")
        name = name.replace("_", "-")
        if single and name == "x" and rest:
            assigned, rest = rest[0].partition("="), rest[1:]
            if assigned[1]:
                found.environment[assigned[0]] = assigned[2]
            continue
        if single and name in ("mca", "genv", "env") and rest:
            name, rest = f"{name} {rest[0]}", rest[1:]
        if not equals and name not in flags and rest:
            value, rest = rest[0], rest[1:]
        found.options[name] = value
    return rest


def _container(found: ProgramLaunch, first: str, rest: list[str]) -> list[str]:
    taken, rest = [rest[0]], rest[1:]
    while rest and rest[0] in ("--quiet", "--silent", "-q", "-s", "--debug", "-d"):
        taken, rest = [*taken, rest[0]], rest[1:]
    if _CONTAINERS[first] and rest and rest[0] in _CONTAINERS[first]:
        taken, rest = [*taken, rest[0]], rest[1:]
    while rest and rest[0].startswith("-"):
        word, rest = rest[0], rest[1:]
        taken.append(word)
        if word == "--":
            break
        if "=" not in word and word not in _CONTAINER_FLAGS and rest:
            taken, rest = [*taken, rest[0]], rest[1:]
    if first not in ("shifter", "singularity_wrapper", "apptainer_wrapper") and rest:
        taken, rest = [*taken, rest[0]], rest[1:]
        if first == "ch-run" and rest[:1] == ["--"]:
            taken, rest = [*taken, "--"], rest[1:]
    found.wrapper += taken
    return rest


def _numactl(found: ProgramLaunch, rest: list[str]) -> list[str]:
    taken, rest = [rest[0]], rest[1:]
    while rest and rest[0].startswith("-"):
        word, rest = rest[0], rest[1:]
        taken.append(word)
        if "=" not in word and word in ("-N", "-m", "-C", "-i", "-p", "-c") and rest:
            taken, rest = [*taken, rest[0]], rest[1:]
    found.wrapper += taken
    return rest


def _runner(found: ProgramLaunch, rest: list[str]) -> list[str]:
    taken, rest = rest[:2], rest[2:]
    while rest and rest[0].startswith("-"):
        word, rest = rest[0], rest[1:]
        taken.append(word)
        if "=" not in word and word in ("-n", "-p", "--name", "--prefix", "--with") and rest:
            taken, rest = [*taken, rest[0]], rest[1:]
    found.wrapper += taken
    return rest


def _program(found: ProgramLaunch, rest: list[str]) -> ProgramLaunch | None:
    first = PurePath(rest[0]).name
    if _PYTHON.fullmatch(first):
        found.python = rest[0]
        rest = rest[1:]
        while rest and rest[0].startswith("-"):
            word, rest = rest[0], rest[1:]
            if word == "-m" or (word.startswith("-") and word.endswith("m") and len(word) == 3):
                return _module(found, rest)
            if word == "-c":
                found.target, found.args = "-c", rest
                return found
            found.python_options.append(word)
            if word in ("-W", "-X") and rest:
                found.python_options.append(rest[0])
                rest = rest[1:]
        if not rest:
            return None
        found.target, found.args = rest[0], rest[1:]
        return found
    if first in ("torchrun", "deepspeed", "composer", "accelerate", "torchx"):
        directory = rest[0][: -len(first)]
        found.python = f"{directory}python" if directory else "python"
        if first == "accelerate" and rest[1:2] != ["launch"]:
            found.python, found.target, found.args = None, rest[0], rest[1:]
            return found
        return _launcher(found, first, rest[2 if first == "accelerate" else 1 :])
    found.target, found.args = rest[0], rest[1:]
    return found


_MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "accelerate.commands.launch": "accelerate",
    "deepspeed.launcher.runner": "deepspeed",
    "composer.cli.launcher": "composer",
}


def _module(found: ProgramLaunch, rest: list[str]) -> ProgramLaunch | None:
    if not rest:
        return None
    name, rest = rest[0], rest[1:]
    if launcher := _MODULES.get(name):
        found = _launcher(found, launcher, rest) or found
        if name == "torch.distributed.launch" and "use-env" not in found.options:
            found.options["local-rank"] = ""
        return found
    found.module, found.args = name, rest
    return found


def _launcher(found: ProgramLaunch, name: str, rest: list[str]) -> ProgramLaunch | None:
    found.launcher = name
    flags = {
        **{"torchrun": _TORCHRUN_FLAGS, "deepspeed": _DEEPSPEED_FLAGS},
        **{"accelerate": _ACCELERATE_FLAGS, "composer": frozenset({"module-mode", "m"})},
    }.get(name, frozenset())
    if name == "accelerate":
        rest = _accelerate_booleans(rest)
    rest = _options(found, rest, flags)
    if not rest:
        return None
    if found.options.keys() & {"module", "m"}:
        found.module, found.args = rest[0], rest[1:]
    elif found.options.keys() & {"no-python"}:
        found.python = None
        found.target, found.args = rest[0], rest[1:]
    else:
        found.target, found.args = rest[0], rest[1:]
    return found


def _accelerate_booleans(rest: list[str]) -> list[str]:
    """Join values of options that may stand without one, as ``--use_deepspeed true``."""
    kept: list[str] = []
    for word in rest:
        before = kept[-1].lstrip("-").replace("_", "-") if kept else ""
        is_value = word.lower() in ("true", "false") and kept and kept[-1].startswith("--")
        if is_value and before in _ACCELERATE_FLAGS:
            kept[-1] += f"={word}"
        else:
            kept.append(word)
    return kept


def is_known(text: str) -> bool:
    """Return whether a text has no unknown part."""
    return MARK.search(text) is None

"""What ``accelerate launch`` sets for its ranks, as variables of a spec."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpcrun.compile.source import yaml_reader
from hpcrun.compile.source.problems import Problems
from hpcrun.convert.draft.program_entry import ScriptPlace
from hpcrun.convert.script.launch_line import ProgramLaunch
from hpcrun.convert.shell.shell_values import MARK
from hpcrun.host import is_there

# Option -> the variable that Accelerate reads in each rank.
_VARIABLES = {
    "mixed-precision": "ACCELERATE_MIXED_PRECISION",
    "gradient-accumulation-steps": "ACCELERATE_GRADIENT_ACCUMULATION_STEPS",
    "dynamo-backend": "ACCELERATE_DYNAMO_BACKEND",
    "dynamo-mode": "ACCELERATE_DYNAMO_MODE",
}
_MEETING = frozenset(
    {
        *("num-processes", "num-machines", "machine-rank", "main-process-ip", "multi-gpu"),
        *("main-process-port", "rdzv-backend", "rdzv-conf", "rdzv-endpoint", "same-network"),
        *("max-restarts", "monitor-interval", "role", "tee", "log-dir", "gpu-ids", "module", "m"),
        *("num-cpu-threads-per-process", "quiet", "debug", "config-file", "deepspeed-hostfile"),
        *("deepspeed-multinode-launcher", "use-deepspeed", "deepspeed-config-file", "use-fsdp"),
        *("cpu", "no-python"),
    }
)
_BOOLEANS = {"true": "true", "false": "false", "": "true"}


@dataclass
class AccelerateOptions:
    """Variables of the ranks, and what Accelerate's launcher was told beyond them."""

    variables: dict[str, str] = field(default_factory=dict)
    deepspeed_config: str | None = None
    lost: list[str] = field(default_factory=list)


def accelerate(launch: ProgramLaunch, place: ScriptPlace, directory: str) -> AccelerateOptions:
    """Return what ``accelerate launch`` and its configuration file set."""
    found = AccelerateOptions()
    if launch.launcher != "accelerate":
        return found
    options = dict(launch.options)
    if path := options.get("config-file"):
        options = {**_of_file(found, path, place, directory), **options}
    uses_fsdp = "use-fsdp" in options and options["use-fsdp"].lower() != "false"
    if uses_fsdp:
        found.variables["ACCELERATE_USE_FSDP"] = "true"
    for name, value in options.items():
        if MARK.search(value) and name not in _MEETING:
            found.lost.append(f"accelerate's --{name}: only a job can tell its value")
        elif name in _VARIABLES:
            plain = value.upper() if name.startswith("dynamo") else value
            if not (name == "dynamo-backend" and plain in ("NO", "")):
                found.variables[_VARIABLES[name]] = plain
        elif name.startswith("fsdp-"):
            found.variables[name.upper().replace("-", "_")] = _BOOLEANS.get(value.lower(), value)
        elif name not in _MEETING:
            how = "environment.variables can set what Accelerate reads (ACCELERATE_…)"
            found.lost.append(f"accelerate's --{name} {value}".rstrip() + f": {how}")
    return found


def _of_file(
    found: AccelerateOptions, path: str, place: ScriptPlace, directory: str
) -> dict[str, str]:
    """Return the options of a configuration file; say where it cannot be read."""
    where = None if MARK.search(path + directory) else place.path(directory, path)
    if where is None or not is_there(where.is_file):
        found.lost.append(
            f"--config_file {Path(path).name if where else '…'} was not found: what it says of "
            "mixed precision, FSDP or DeepSpeed is not in the spec; see environment.variables and "
            "deepspeed_config"
        )
        return {}
    problems = Problems()
    tree = yaml_reader.read_yaml(where, path, problems)
    data = tree.data if tree is not None and not problems else None
    if not isinstance(data, dict):
        found.lost.append(f"--config_file {path} cannot be read")
        return {}
    options: dict[str, str] = {}
    for name, value in data.items():
        if isinstance(value, dict):
            prefix = "fsdp-" if name == "fsdp_config" else ""
            for inner, one in value.items():
                plain = str(inner).replace("_", "-")
                key = plain if plain.startswith(("fsdp-", "deepspeed-")) else prefix + plain
                _add(options, key, one)
            if name == "fsdp_config" and value:
                options["use-fsdp"] = "true"
            if name == "deepspeed_config" and value:
                options["use-deepspeed"] = "true"
        elif str(name) in _OF_MACHINES:
            continue
        else:
            _add(options, str(name).replace("_", "-"), value)
    if given := options.get("deepspeed-config-file"):
        found.deepspeed_config = given
    return options


_OF_MACHINES = frozenset(
    {
        *("compute_environment", "distributed_type", "debug", "downcast_bf16", "tpu_env"),
        *("enable_cpu_affinity", "main_training_function", "tpu_use_cluster", "tpu_use_sudo"),
        *("use_cpu", "rdzv_backend", "same_network", "num_machines", "num_processes", "gpu_ids"),
        *("machine_rank", "main_process_ip", "main_process_port", "command_file", "commands"),
    }
)


def _add(options: dict[str, str], name: str, value: Any) -> None:
    if value is None or isinstance(value, (dict, list)):
        return
    options[name] = str(value).lower() if isinstance(value, bool) else str(value)

"""Convert published sbatch scripts, and check their specs on a real Slurm.

The scripts are other people's: they lie in ``--scripts DIRECTORY`` as ``OWNER+NAME/PATH``, outside
of this repository. What their site has and the test bed has not (names of partitions, accounts and
features, modules, more nodes) is changed on `hpcrun check`'s command line, as a person would who
takes a script to another cluster; the programs that they start are empty files. A configuration of
DeepSpeed beside a script is the published one.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import yaml

from tests.cluster.workbench import Workbench
from tests.testbed import VERSIONS, Cluster

# Repository, path, and what it shows.
SCRIPTS = (
    ("pytorch/examples", "distributed/minGPT-ddp/mingpt/slurm/sbatch_run.sh", "torchrun"),
    (
        "stas00/ml-engineering",
        "orchestration/slurm/launchers/torchrun-launcher.slurm",
        "torch.distributed.run in bash -c",
    ),
    ("PrincetonUniversity/multi_gpu_training", "02_pytorch_ddp/job.slurm", "srun python"),
    (
        "ConnollyLeon/DistributedTest",
        "ZeRO/DeepSpeedExamples/mnist/run_ds.sh",
        "deepspeed with a hostfile",
    ),
    ("huggingface/accelerate", "examples/slurm/submit_multinode.sh", "accelerate in variables"),
    (
        "CSCfi/pytorch-ddp-examples",
        "run-accelerate-gpu8.sh",
        "accelerate in a container, bash -c",
    ),
    (
        "bigscience-workshop/bigscience",
        "train/tr11-176B-ml/smaller_models/tr11d-760M-ml.slurm",
        "Megatron-DeepSpeed, its JSON written by the script",
    ),
    (
        "bigscience-workshop/bigscience",
        "experiments/gpt2-hf-ds/hf_ds_gpt2_perf_n16_z2.slurm",
        "Trainer, its DeepSpeed JSON written by the script",
    ),
    ("robflynnyh/learning-to-augment", "exp/job.sh", "an array's task as an option"),
    ("myasincifci/svg_reimp", "run_sweep.sh", "an array's task as an index, Hydra, apptainer"),
    ("gigantocypris/CT_NVAE", "experimental/signal_interrupt.sh", "--requeue and --signal"),
    (
        "aboots/Prostnfound-RL",
        "medAI/resources/slurm_template_4-rtx6000.sh",
        "a trap that requeues; its `if` is not closed",
    ),
    ("NERSC/sc23-dl-tutorial", "submit_pm_dp.sh", "shifter, the script's own arguments"),
)
_NODES = {"cpus": 256, "memory_mb": 600_000, "gpus": 8}
_OF_SHELL = re.compile(r"\$\{oc\.env:(\w+)")


def entry_file(spec: dict[str, Any]) -> str | None:
    """Return the Python file that a spec's entry starts."""
    entry = spec["entry"]
    words = [entry] if isinstance(entry, str) else entry
    return next((word for word in words if word.endswith(".py")), None)


def overrides(spec: dict[str, Any], python: str) -> list[str]:
    """Return what is changed for the test bed."""
    resources = spec["resources"]
    found = ["cluster=bed", "resources.partition=main", f"environment.python={python}"]
    found.append("environment.setup=[]")
    for key in ("account", "qos", "constraint", "reservation", "gpu_type"):
        if resources.get(key):
            found.append(f"resources.{key}=null")
    if resources["nodes"] > 4:
        found.append("resources.nodes=4")
    if "licenses" in resources.get("sbatch", {}):
        found.append("resources.sbatch.licenses=null")
    entry = spec["entry"]
    if isinstance(entry, str) and entry.startswith("/"):
        found.append(f"entry={Path(entry).name}")
    return found


def measure(bench: Workbench, scripts: Path, number: int) -> dict[str, Any]:
    """Convert one script as a user of the bed, and check its spec."""
    repository, path, shows = SCRIPTS[number]
    source = scripts / repository.replace("/", "+") / path
    directory = bench.directory / str(number)
    directory.mkdir()
    shutil.copytree(bench.directory / "configs", directory / "configs")
    for one in (source, *source.parent.glob("ds_config.json")):
        shutil.copy(one, directory / one.name)
    environment = {"HPCRUN_ROOT": str(bench.root)}
    row: dict[str, Any] = {"repository": repository, "path": path, "shows": shows}
    _own(bench, directory)
    done = _hpcrun(bench, directory, environment, "init", "--from", source.name, "--json")
    if done.returncode:
        return {**row, "init": done.returncode, "said": done.stderr.strip()}
    found = json.loads(done.stdout)
    fates = [one["fate"] for one in found["lines"]]
    row.update(
        lines=sum(1 for line in source.read_text().splitlines() if line.strip()),
        **{name.replace(" ", "_"): fates.count(name) for name in sorted(set(fates))},
        otherwise=len(found["lost"]),
    )
    spec = yaml.safe_load(found["spec"])
    for name in _OF_SHELL.findall(found["spec"]):
        environment[name] = str(directory / "shell" / name)
    program = entry_file(spec)
    if program is not None:
        place = re.sub(
            r"\$\{oc\.env:(\w+)[^}]*\}", lambda match: environment[match[1]], program
        ).lstrip("/" if not program.startswith("$") else "")
        file = directory / (Path(place).name if program.startswith("/") else place)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("")
    _own(bench, directory)
    changed = overrides(spec, bench.cluster.python)
    done = _hpcrun(bench, directory, environment, "check", "experiment.yaml", *changed, "--json")
    findings = json.loads(done.stdout)[-1]["findings"] if done.stdout else []
    told = [f"{one['severity']}: {one['key']}: {one['message']}" for one in findings]
    row.update(check=done.returncode, changed=changed[4:], findings=told)
    if not findings and done.returncode:
        row["findings"] = done.stderr.strip().splitlines()
    return {**row, "findings": [_plain(one, directory) for one in row["findings"]]}


def _plain(text: str, directory: Path) -> str:
    return text.replace(str(directory), "DIRECTORY")


def _own(bench: Workbench, directory: Path) -> None:
    for path in (directory, *directory.rglob("*")):
        shutil.chown(path, bench.cluster.uid, bench.cluster.uid)


def _hpcrun(bench: Workbench, directory: Path, environment: dict[str, str], *words: str) -> Any:
    return bench.cluster.run(
        [bench.cluster.python, "-m", "hpcrun", *words],
        env=environment,
        cwd=str(directory),
        check=False,
    )


def table(rows: list[dict[str, Any]]) -> str:
    """Return the results as text."""
    lines = [f"{'script':<96} carried not-needed left check"]
    for row in rows:
        name = f"{row['repository']} {row['path']}"
        counts = [row.get(key, 0) for key in ("carried_over", "not_needed")]
        left = row.get("could_not_be_carried_over", 0) + row.get("otherwise", 0)
        passed = {0: "passes"}.get(row.get("check", row.get("init")), "refused")
        lines.append(f"{name:<96} {counts[0]:>7} {counts[1]:>10} {left:>4} {passed}")
    passed = sum(1 for row in rows if row.get("check") == 0)
    lines.append(f"{passed} of {len(rows)} specs pass `hpcrun check`; target: 8 of 10")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Measure all, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scripts", type=Path, required=True, help="the published scripts")
    parser.add_argument("--version", default=VERSIONS[0], help="of Slurm")
    parser.add_argument("--output", type=Path, help="a directory for published_scripts.json")
    arguments = parser.parse_args()
    with Cluster(arguments.version, **_NODES) as cluster:
        bench = Workbench(cluster, "published")
        rows = [measure(bench, arguments.scripts, number) for number in range(len(SCRIPTS))]
    sys.stdout.write(table(rows))
    if arguments.output:
        result = {"slurm": arguments.version, "scripts": rows}
        arguments.output.mkdir(parents=True, exist_ok=True)
        path = arguments.output / "published_scripts.json"
        path.write_text(json.dumps(result, indent=1) + "\n")
        path.with_suffix(".txt").write_text(table(rows))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

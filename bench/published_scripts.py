"""Convert published sbatch scripts, plan and check their specs on a real Slurm, and run both.

The scripts are other people's: they lie in ``--scripts DIRECTORY`` as ``OWNER+NAME/PATH``, outside
of this repository. What their site has and the test bed has not (names of partitions, accounts and
features, more nodes) is changed on hpcrun's command line, as a person would who takes a script to
another cluster, and in the script's own #SBATCH lines.

Where the bed has room, the script itself is submitted by sbatch, and the converted one by hpcrun.
In place of all programs that they start there is one that records its words, environment, directory
and limits (`bench.published_stub`). Both must have recorded the same.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import yaml

from bench import published_stub
from bench.published_list import SCRIPTS
from tests.cluster.workbench import REPOSITORY, Workbench
from tests.testbed import VERSIONS, Cluster

# Numbers of jobs that nothing else in a record is.
_NODES: dict[str, Any] = {
    "cpus": 256,
    "memory_mb": 600_000,
    "gpus": 8,
    "extra": {"FirstJobId": "73501"},
}
_MOST_NODES = 4
# Options whose values are names of a site, or that take longer than the bed has.
_OF_SITE = re.compile(
    r"^#SBATCH\s+(?:--(?:partition|account|qos|constraint|reservation|exclude|licenses|nodelist|"
    r"image|module|mail-\w+|time|array|output|error|chdir|exclusive|nodes)\b|-[pAqCxLwtaoeDN]\b)",
    re.MULTILINE,
)
_SITE_KEYS = ("account", "qos", "constraint", "reservation", "exclude", "gpu_type")
_SITE_OPTIONS = ("licenses", "nodelist", "--image", "--module", "exclusive")


def overrides(spec: dict[str, Any], python: str) -> list[str]:
    """Return what is changed for the test bed."""
    resources = spec["resources"]
    found = ["cluster=bed", "resources.partition=main", f"environment.python={python}"]
    found += [f"resources.{key}=null" for key in _SITE_KEYS if resources.get(key)]
    given = resources.get("sbatch") or {}
    found += [f"resources.sbatch.{key}=null" for key in _SITE_OPTIONS if key in given]
    for key in ("nodes", "gpus_per_node", "ntasks_per_node", "cpus_per_task"):
        if resources.get(key) == "???":
            found.append(f"resources.{key}=1")
    if "???" in (resources.get("time"), spec.get("name")):
        found.append("resources.time=00:05:00")
    if resources.get("nodes") not in (None, "???") and resources["nodes"] > _MOST_NODES:
        found.append(f"resources.nodes={_MOST_NODES}")
    return found


def measure(bench: Workbench, scripts: Path, number: int, *, is_run: bool) -> dict[str, Any]:
    """Convert one script as a user of the bed, plan and check its spec, and run both."""
    repository, path, shows = SCRIPTS[number]
    source = scripts / repository.replace("/", "+") / path
    directory = bench.directory / str(number)
    directory.mkdir()
    shutil.copytree(bench.directory / "configs", directory / "configs")
    shutil.copy(source, directory / source.name)
    row: dict[str, Any] = {"repository": repository, "path": path, "shows": shows}
    _own(bench, directory)
    done = _hpcrun(bench, directory, "init", "--from", source.name, "--json")
    if done.returncode:
        return {**row, "init": done.returncode, "said": done.stderr.strip()}
    found = json.loads(done.stdout)
    fates = [one["fate"] for one in found["lines"]]
    spec = yaml.safe_load(found["spec"])
    row.update(
        lines=len(fates),
        fates={name: fates.count(name) for name in sorted(set(fates))},
        asks=found["asks"],
        as_it_is=spec.get("framework") == "batch",
    )
    changed = overrides(spec, bench.cluster.python)
    planned = _hpcrun(bench, directory, "plan", "experiment.yaml", *changed)
    row["plan"] = planned.returncode
    done = _hpcrun(bench, directory, "check", "experiment.yaml", *changed, "--json")
    findings = json.loads(done.stdout)[-1]["findings"] if done.stdout else []
    told = [f"{one['severity']}: {one['key']}: {one['message']}" for one in findings]
    if not findings and done.returncode:
        told = done.stderr.strip().splitlines()
    row.update(check=done.returncode, changed=changed[3:])
    row["findings"] = [one.replace(str(directory), "DIRECTORY") for one in told]
    nodes = spec["resources"].get("nodes", 1)
    if is_run and planned.returncode == 0 and nodes != "???" and nodes <= _MOST_NODES:
        row["run"] = compare(bench, directory, source, spec, changed)
    return row


def compare(
    bench: Workbench, directory: Path, source: Path, spec: dict[str, Any], changed: list[str]
) -> dict[str, Any]:
    """Run a script by sbatch and its spec by hpcrun; return what they recorded differently."""
    stubs = published_stub.install(bench.directory, bench.cluster.python)
    text = source.read_text(errors="replace")
    published_stub.beside(directory, stubs, text)
    _own(bench, bench.directory)
    base = published_stub.environment(bench, stubs)
    options = ["--partition=main", "--time=5", f"--nodes={spec['resources'].get('nodes', 1)}"]
    options += ["--array=0"] if spec.get("sweep") else []
    own = _OF_SITE.sub(lambda match: "#" + match[0], text)
    own = re.sub(r"(#SBATCH.*(?:gpu:|gpus\S*[= ]))\w*[a-zA-Z]\w*:(\d)", r"\1\2", own)
    (directory / "itself.sh").write_text(own)
    given = [f"{name}={value}" for name, value in base.items()]
    argv = ["env", "-i", *given, "sbatch", "--parsable", "--wait", "--output=itself.log", *options]
    done = bench.cluster.run([*argv, "itself.sh"], cwd=str(directory), check=False, timeout=400)
    job = (done.stdout or "0").split("_")[0].split(";")[0].strip()
    itself = published_stub.records(bench.directory, job)
    words = [*changed, f"environment.python={stubs / published_stub.PYTHON}"]
    words += ["resources.time=00:05:00", "recovery.max_failures=1", "recovery.in_place=0"]
    words += [f"+environment.variables.PATH={base['PATH']}"]
    # That of the bed's profile limits what a program sees.
    words += [] if "mem" in spec["resources"] else ["resources.mem=null"]
    words += ["--sweep", "config.task=0"] if spec.get("sweep") else []
    submitted = _hpcrun(bench, directory, "submit", "experiment.yaml", *words, "--wait")
    status = _hpcrun(bench, directory, "status", str(spec["name"]), "--json")
    one = json.loads(status.stdout)[0] if status.stdout else {}
    converted = published_stub.records(bench.directory, str(one.get("job_id")).split("_")[0])
    work = Path(f"{one.get('directory')}/work")
    places = {str(directory): ".", str(work): "."}
    places |= {str(directory.parent): "..", str(work.parent): ".."}
    differing = published_stub.difference(itself, converted, places)
    found = {"programs": len(itself), "state": one.get("state"), "differs": differing}
    if one.get("state") != "completed" or differing:
        name = str(spec["name"])
        found["why"] = _hpcrun(bench, directory, "why", name).stdout.splitlines()[-20:]
        found["log"] = _hpcrun(bench, directory, "logs", name).stdout.splitlines()[-20:]
        found["submit"] = submitted.stderr.splitlines()[-8:]
    return found


def _own(bench: Workbench, directory: Path) -> None:
    for path in (directory, *directory.rglob("*")):
        os.chown(path, bench.cluster.uid, bench.cluster.uid, follow_symlinks=False)


def _hpcrun(bench: Workbench, directory: Path, *words: str) -> Any:
    return bench.cluster.run(
        [bench.cluster.python, "-m", "hpcrun", *words],
        env={"HPCRUN_ROOT": str(bench.root / directory.name), "PYTHONPATH": str(REPOSITORY)},
        cwd=str(directory),
        check=False,
        timeout=400,
    )


def table(rows: list[dict[str, Any]]) -> str:
    """Return the results as text."""
    lines = [f"{'script':<100} as it is  plan     check    programs differ"]
    for row in rows:
        name = f"{row['repository']} {row['path']}"[-100:]
        shown = ["passes" if row.get(key) == 0 else "refused" for key in ("plan", "check")]
        run = row.get("run")
        both = f"{run['programs']:>8} {len(run['differs']):>6}" if run else ""
        kept = "yes" if row.get("as_it_is") else ""
        lines.append(f"{name:<100} {kept:<9} {shown[0]:<8} {shown[1]:<8} {both}".rstrip())
    same = [row for row in rows if "run" in row]
    alike = sum(1 for row in same if row["run"]["programs"] and not row["run"]["differs"])
    lines.append(
        f"{sum(row.get('plan') == 0 for row in rows)} of {len(rows)} specs are planned; of "
        f"{len(same)} that were run beside their scripts, {alike} recorded the same"
    )
    return "\n".join(lines) + "\n"


def main() -> int:
    """Measure all, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scripts", type=Path, required=True, help="the published scripts")
    parser.add_argument("--version", default=VERSIONS[0], help="of Slurm")
    parser.add_argument("--only", type=int, nargs="*", help="numbers of scripts, from 0")
    parser.add_argument("--no-run", action="store_true", help="plan and check alone")
    parser.add_argument("--output", type=Path, help="a directory for the results")
    arguments = parser.parse_args()
    numbers = arguments.only or range(len(SCRIPTS))
    rows = []
    with Cluster(arguments.version, **_NODES) as cluster:
        bench = Workbench(cluster, "published")
        bed, python = str(cluster.root), cluster.python
        for number in numbers:
            rows.append(measure(bench, arguments.scripts, number, is_run=not arguments.no_run))
            print(json.dumps(rows[-1], indent=1), file=sys.stderr, flush=True)
    sys.stdout.write(table(rows))
    if arguments.output:
        result = {"slurm": arguments.version, "scripts": rows}
        arguments.output.mkdir(parents=True, exist_ok=True)
        path = arguments.output / f"published_scripts-{arguments.version}.json"
        text = json.dumps(result, indent=1).replace(bed, "BED").replace(python, "PYTHON")
        path.write_text(text + "\n")
        path.with_suffix(".txt").write_text(table(rows))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

"""What ``hpcrun init`` will write, and what it has to say: made as a whole before a file is."""

from __future__ import annotations

import os
import re
import shlex
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

from hpcrun import activity
from hpcrun.compile.source.marked_tree import COMMAND_LINE, SourceMark
from hpcrun.compile.source.problems import Problems
from hpcrun.compile.spec import profile, profile_files
from hpcrun.errors import ClusterUnreachable, UsageError
from hpcrun.host import expand_home
from hpcrun.site.slurm_site import SlurmSite
from hpcrun.text import listed, plural
from hpcrun.tools.init.starter import job_choice, root_choice, site_software, starter_text, survey
from hpcrun.tools.init.starter.file_plan import KEPT, REPLACED, PlannedFile
from hpcrun.tools.init.starter.job_choice import JobChoice, PartitionUse
from hpcrun.tools.init.starter.python_search import CPU, RUNNING, FoundPython
from hpcrun.tools.init.starter.root_choice import RootChoice
from hpcrun.tools.init.starter.survey import Survey

LOCAL = profile.LOCAL
_ANOTHER = "choose another directory: hpcrun init DIR"
_OF_PYTHON = "executable origin version torch deepspeed build problem"
_MODULE = re.compile(r"[\w./+-]+", re.ASCII)


@dataclass(frozen=True)
class InitRequest:
    """What was typed."""

    directory: Path
    root: Path | None = None
    force: bool = False
    """Files that are there may be replaced."""
    is_local: bool = False
    """The starter is for this machine; Slurm is not asked."""
    profile_only: bool = False
    """No starter project is made."""


@dataclass(frozen=True)
class InitPlan:
    """All of it."""

    request: InitRequest
    survey: Survey
    cluster: str
    """The profile that the starter names."""
    profile: Path | None
    """The profile's file; None on this machine alone."""
    root: RootChoice
    uses: list[PartitionUse] = field(default_factory=list)
    job: JobChoice | None = None
    """The starter's job; None where it runs on this machine."""
    given: Mapping[str, Any] | None = None
    """What a profile that is kept says of jobs; None where the profile is written."""
    files: list[PlannedFile] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def write(self) -> None:
        """Write the files, the profile before those that name it."""
        self.request.directory.mkdir(parents=True, exist_ok=True)
        for one in self.files:
            one.write()

    def next_lines(self) -> list[str]:
        """Return the commands to type next."""
        found = []
        if self.survey.python is None and not self.request.profile_only:
            found.append("pip install 'hpcrun[train]'")
        if not self.root.is_default:
            found.append(f"export HPCRUN_ROOT={shlex.quote(self.root.path)}")
        if self.request.profile_only:
            return [*found, f"hpcrun check SPEC cluster={self.cluster}"]
        if os.path.realpath(self.request.directory) != os.path.realpath("."):
            found.append(f"cd {shlex.quote(str(self.request.directory))}")
        return [*found, "hpcrun check", "hpcrun submit"]


def make(request: InitRequest) -> InitPlan:
    """Ask, choose and compose; nothing is written.

    Raises
    ------
    UsageError
        The directory has a project that is not ours, or a profile that is kept is wrong.
    ClusterUnreachable
        There is a Slurm, and it does not answer.
    """
    _check_directory(request)
    try:
        found = survey.take(request.directory.absolute(), with_slurm=not request.is_local)
    except ClusterUnreachable as error:
        hint = "repeat the same command when Slurm answers; `hpcrun init --local` makes a starter "
        raise ClusterUnreachable(error.message, hint=f"{hint}for this machine") from None
    typed = str(request.root) if request.root else None
    root = root_choice.choose(found.storage, os.environ, typed)
    if found.slurm is None:
        return _on_this_machine(request, found, root)
    return _on_slurm(request, found, found.slurm, root)


def _on_this_machine(request: InitRequest, found: Survey, root: RootChoice) -> InitPlan:
    if request.profile_only:
        raise UsageError(
            "there is no Slurm to make a profile of: no sbatch in PATH",
            hint="the profile `local` ships with hpcrun, and is what runs on this machine",
        )
    why = "as --local says" if request.is_local else "there is no Slurm here (no sbatch in PATH)"
    notes = [f"the starter is for this machine, `cluster: {LOCAL}`: {why}"]
    if request.root is None:
        # The profile `local` has the default root.
        own = [replace(one, is_shared=True) for one in found.storage if one.source == "$HOME"]
        root = replace(root_choice.choose(own, os.environ), doubt="")
    plan = InitPlan(request, found, LOCAL, None, root, notes=notes)
    plan.notes.extend(_of_python(found, None))
    plan.files.extend(_project(plan))
    return plan


def _on_slurm(request: InitRequest, found: Survey, site: SlurmSite, root: RootChoice) -> InitPlan:
    name = starter_text.profile_name(site)
    path = profile_files.own_directory() / f"{name}.yaml"
    shipped, there = profile_files.shipped_directory(), profile_files.available(request.directory)
    profiles = {one: place for one, place in there.items() if place.parent != shipped}
    kept = None if request.force else profiles.get(name)
    given: Mapping[str, Any] = {}
    if kept is not None:
        path, given, root = _keep_profile(kept, name, request.directory)
    python = found.python
    on_gpus = python is None or python.build != CPU
    with activity.doing("choosing a partition"):
        uses = job_choice.uses(site, given)
        job = job_choice.choose(site, uses, given, on_gpus=on_gpus)
    cluster = name if job is not None or request.profile_only else LOCAL
    plan = InitPlan(request, found, cluster, path, root, uses, job, given if kept else None)
    setup, of_modules = _setup(found)
    plan.notes.extend([*_of_name(name, site), *_of_slurm(plan, site, given), *of_modules])
    plan.notes.extend(_of_python(found, job))
    if kept is not None:
        plan.notes.append(
            f"the profile {path} is there already, and is kept; to write yours anew: hpcrun init "
            "--profile-only --force"
        )
    else:
        plan.notes.extend([root.doubt] if root.doubt else [])
        if others := [one for one in profiles if one != name]:
            told = f"other profiles that are there, for `cluster:` of a spec: {listed(others, 8)}"
            plan.notes.append(told)
        day = time.strftime("%Y-%m-%d")
        schema = path.parent.parent / starter_text.PROFILE_SCHEMA
        told = starter_text.profile(found, site, uses, job, root, day, setup)
        plan.files.append(_schema(schema, "profile", force=request.force))
        plan.files.append(PlannedFile.of(path, told, force=request.force))
    if not request.profile_only:
        plan.files.extend(_project(plan))
    return plan


def _keep_profile(
    there: Path, name: str, directory: Path
) -> tuple[Path, Mapping[str, Any], RootChoice]:
    """Return a profile's path, its defaults for jobs, and its root."""
    problems = Problems()
    mark = SourceMark(COMMAND_LINE, None, directory)
    loaded = profile.load(name, directory, mark, problems)
    problems.check()
    assert loaded is not None
    own = str(expand_home(loaded.data["root"]))
    default = root_choice.default_root(os.environ)
    is_default = os.path.realpath(own) == os.path.realpath(default)
    return there, loaded.data["resources"], RootChoice(own, f"root of {there}", own, is_default)


def _check_directory(request: InitRequest) -> None:
    """Raise UsageError where the project's files would come between somebody's own."""
    directory = request.directory
    if request.profile_only:
        return
    if os.path.lexists(directory) and not directory.is_dir():
        raise UsageError(f"{directory} is no directory", hint=_ANOTHER)
    if os.path.realpath(directory) == os.path.realpath(Path.home()):
        raise UsageError(
            f"{directory} is your home: all that it holds would go with each submission",
            hint="make the starter in a directory of its own: hpcrun init first",
        )
    there = next(path for path in (directory, *directory.absolute().parents) if path.is_dir())
    if not os.access(there, os.W_OK | os.X_OK):
        raise UsageError(f"{there} cannot be written by you; nothing was written", hint=_ANOTHER)
    if request.force:
        return
    spec = directory / starter_text.SPEC
    if os.path.lexists(spec):
        kept = PlannedFile.of(spec, "", force=False)
        if starter_text.MARK not in kept.there[:1000]:
            raise _in_the_way(spec)
    elif os.path.lexists(directory / starter_text.PROGRAM):
        program = directory / starter_text.PROGRAM
        if PlannedFile.of(program, starter_text.program(), force=False).action == KEPT:
            raise _in_the_way(program)


def _in_the_way(path: Path) -> UsageError:
    return UsageError(
        f"{path} is there already, and `hpcrun init` did not write it; nothing was written",
        hint="make the starter in an empty directory: hpcrun init DIR; the profile alone: hpcrun "
        "init --profile-only; or have it replaced: --force",
    )


def _project(plan: InitPlan) -> Iterator[PlannedFile]:
    directory, force = plan.request.directory, plan.request.force
    name = _free_name(plan)
    job = plan.job if plan.cluster != LOCAL else None
    spec = starter_text.spec(name, plan.cluster, job, plan.survey.python, plan.given)
    yield _schema(directory / starter_text.SCHEMA, "spec", force=force)
    yield PlannedFile.of(directory / starter_text.PROGRAM, starter_text.program(), force=force)
    yield PlannedFile.of(directory / starter_text.SPEC, spec, force=force)


def _free_name(plan: InitPlan) -> str:
    """Return the experiment's name: that of the directory, or like it where there is one so."""
    directory = plan.request.directory
    name = starter_text.experiment_name(Path(os.path.realpath(directory)).name)
    root = Path(plan.root.path)
    if os.path.lexists(directory / starter_text.SPEC) or not os.path.lexists(root / name):
        return name
    free = next(each for each in (f"{name}-{n}" for n in count(2)) if not (root / each).exists())
    plan.notes.append(f"the experiment is called {free}, as there is {root / name} already")
    return free


def _schema(path: Path, of: str, *, force: bool) -> PlannedFile:
    """Return the plan for a schema, which is hpcrun's own: that of another version is replaced."""
    found = PlannedFile.of(path, starter_text.schema(of), force=force)
    is_ours = '"title": "hpcrun ' in found.there[:200]
    return replace(found, action=REPLACED) if found.action == KEPT and is_ours else found


def _setup(found: Survey) -> tuple[list[str], list[str]]:
    """Return the shell lines that the Python needs, and what to say of modules."""
    loaded, python = found.software.loaded or {}, found.python
    if not loaded or python is None:
        return [], []
    name = site_software.provider(python.executable, loaded)
    if name and _MODULE.fullmatch(name):
        return [f"module load {name}"], []
    told = f"modules that are loaded in this shell are not in jobs: {listed([*loaded], 8)}; if "
    return [], [f"{told}{python.executable} needs them, write them to `setup` of the profile"]


def _of_name(name: str, site: SlurmSite) -> Iterator[str]:
    if name != site.name:
        why = "means this machine" if site.name == LOCAL else "is no name that a profile can have"
        yield f"the profile is called {name}: the cluster's own name, {site.name!r}, {why}"


def _of_slurm(plan: InitPlan, site: SlurmSite, given: Mapping[str, Any]) -> Iterator[str]:
    if site.without_accounting:
        yield (
            f"accounts, QOS and their limits are not known: {site.without_accounting}; Slurm's own "
            "defaults are used"
        )
    elif not site.associations:
        then = "and this Slurm does not insist on one"
        if site.enforces("associations"):
            then = "its jobs are refused: ask the administrators for an account"
        yield f"{site.user} has no account on {site.name} (no association in slurmdbd); {then}"
    closed = [one for one in plan.uses if one.problem]
    if closed and len(closed) < len(plan.uses):
        names = listed([one.name for one in closed], 6)
        yield f"not open to you, of {plural(len(plan.uses), 'partition')}: {names}"
    if plan.job is None:
        yield from _no_job(plan, given)
        return
    job = plan.job
    if site.default_partition() is None:
        yield f"this cluster has no default partition; {job.use.name} was chosen"
    elif not job.use.partition.is_default:
        yield f"the partition {job.use.name} was chosen: {job.why}"
    if job.use.partition.is_hidden:
        yield f"the partition {job.use.name} is hidden from sinfo, and is open to you"
    if job.use.account and site.default_account != job.use.account and not given.get("account"):
        default = site.default_account or "(none)"
        yield f"the account {job.use.account} was chosen: with your default, {default}, no job fits"
    if job.nodes < job_choice.NODES:
        yield f"the starter takes {plural(job.nodes, 'node')}: two can be had nowhere"
    yield from job.doubts


def _no_job(plan: InitPlan, given: Mapping[str, Any]) -> Iterator[str]:
    if given.get("partition"):
        yield f"no job fits the partition {given['partition']} of the profile"
    if not plan.uses:
        yield "Slurm shows no partition"
    for one in plan.uses[:4]:
        yield f"partition {one.name}: {one.problem or 'it has no nodes for a first job'}"
    if not plan.request.profile_only:
        yield f"no partition would start a job of yours: the starter is for this machine, {LOCAL}"


def _of_python(found: Survey, job: JobChoice | None) -> Iterator[str]:
    python = found.python
    if python is None:
        best = max(found.pythons, key=lambda one: bool(one.torch), default=None)
        told = f"{best.executable} ({best.origin}) has no {best.lacks}" if best else "none is there"
        if best is not None and best.problem:
            told = f"{best.executable} ({best.origin}): {best.problem}"
        yield f"no Python with torch and deepspeed was found, and the starter needs one: {told}"
        return
    if python.origin != RUNNING:
        yield f"the job's Python is {python.executable} ({python.origin}): {_why_not_ours(found)}"
    if not found.has_compiler and (job is None or not job.gpus_per_node):
        yield (
            "DeepSpeed compiles a part of itself for training on CPUs, and no C++ compiler and "
            f"ninja are in PATH or beside {python.executable}: nodes need both"
        )
    if python.is_unchecked:
        yield f"{python.executable}: {python.problem}; its files tell of torch {python.torch}"
    gpus = found.slurm is not None and any(n.gpus for n in found.slurm.nodes.values())
    if job is not None and gpus and not job.gpus_per_node:
        if python.build == CPU:
            yield (
                f"this cluster has GPUs, and torch {python.torch} of {python.executable} is built "
                "for CPUs: the starter trains on CPUs"
            )
        else:
            yield "this cluster has GPUs, and a job of yours gets none: the starter trains on CPUs"


def _why_not_ours(found: Survey) -> str:
    ours: FoundPython | None = next((p for p in found.pythons if p.origin == RUNNING), None)
    if ours is None:
        return "the first with torch and deepspeed"
    return f"the one that runs hpcrun has no {ours.lacks}" if ours.lacks else ours.problem


def rows(plan: InitPlan) -> Iterator[tuple[str, str, str]]:
    """Yield rows of a subject, what was found of it, and its source."""
    site, seen = plan.survey.slurm, plan.survey
    if site is None:
        why = "--local" if plan.request.is_local else "no sbatch in PATH"
        yield "cluster", f"{plan.cluster}: this machine", why
    else:
        yield "cluster", f"{site.name}, Slurm {site.version}", "scontrol show config"
        names = [one.name for one in plan.uses if not one.problem]
        told = f"{len(names)} of {len(plan.uses)} open to you: {listed(names, 6)}"
        yield "partitions", told if names else "none is open to you", "scontrol show partition"
    if site is not None and plan.job is not None:
        use = plan.job.use
        nodes = job_choice.nodes_in_words(site, use.partition)
        yield "partition", f"{use.name}: {nodes}", plan.job.why
        account = use.account or "left to Slurm"
        yield "account", f"{account}{f', QOS {use.qos}' if use.qos else ''}", "sacctmgr"
        gpus = plan.job.gpus_per_node
        each = f"{gpus} GPU a node" if gpus else f"{plural(plan.job.cpus_per_task, 'CPU')} a node"
        yield "first job", f"{plural(plan.job.nodes, 'node')}, {each}", "as hpcrun check judges"
    yield "root", plan.root.path, plan.root.why
    python = seen.python
    if python is None:
        yield "Python", "none with torch and deepspeed", f"{len(seen.pythons)} were looked at"
    else:
        has = f"torch {python.torch}, DeepSpeed {python.deepspeed}"
        yield "Python", f"{python.executable}: {has}", python.origin
    if seen.software.modules:
        yield "modules", listed(seen.software.modules, 6), "MODULEPATH"
    if seen.software.images:
        yield "images", listed(seen.software.images, 3), "files .sif, .sqsh"
    if site is not None and seen.network.interfaces:
        of = f"/sys of {seen.host}; nodes look for their own"
        yield "networks", listed([*seen.network.interfaces, *seen.network.adapters], 6), of


def data(plan: InitPlan, *, dry_run: bool) -> dict[str, Any]:
    """Return all of it as plain data; unknown is null."""
    site, seen, job = plan.survey.slurm, plan.survey, plan.job
    return {
        "cluster": plan.cluster,
        "slurm": site.version if site else None,
        "profile": str(plan.profile) if plan.profile else None,
        "root": plan.root.path,
        "partitions": [
            {
                "name": one.name,
                "default": one.partition.is_default,
                "hidden": one.partition.is_hidden,
                "nodes": len(one.partition.nodes),
                "max_seconds": one.partition.max_time,
                "account": one.account or None,
                "qos": one.qos or None,
                "problem": one.problem or None,
            }
            for one in plan.uses
        ],
        "job": job
        and {
            "partition": job.use.name,
            "account": job.use.account or None,
            "qos": job.use.qos or None,
            "nodes": job.nodes,
            "gpus_per_node": job.gpus_per_node,
            "cpus_per_task": job.cpus_per_task,
            "mem": job.mem,
            "minutes": job.minutes,
        },
        "pythons": [
            {
                **{name: getattr(one, name) or None for name in _OF_PYTHON.split()},
                "chosen": one == seen.python,
            }
            for one in seen.pythons
        ],
        "storage": [
            {
                "path": one.path,
                "source": one.source,
                "type": one.kind or None,
                "shared": one.is_shared,
                "free_bytes": one.free if one.is_usable else None,
                "problem": one.problem or None,
            }
            for one in seen.storage
        ],
        "modules": list(seen.software.modules),
        "images": list(seen.software.images),
        "interfaces": list(seen.network.interfaces),
        "adapters": list(seen.network.adapters),
        "files": [
            {"path": str(one.path), "action": one.action, **({"text": one.text} if dry_run else {})}
            for one in plan.files
        ],
        "notes": plan.notes,
        "next": plan.next_lines(),
    }

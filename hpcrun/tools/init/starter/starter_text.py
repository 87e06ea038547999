"""The texts of a cluster profile, with where each line was learnt from, and of a project. Pure.

They are YAML with a comment on each line; what others have written cannot leave its place.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from hpcrun import resources
from hpcrun.compile.spec import json_schema
from hpcrun.compile.target.slurm_options import LONGEST_NAME
from hpcrun.site.shared_storage import StoragePlace
from hpcrun.site.slurm_site import SlurmSite
from hpcrun.text import duration, listed, one_line, shortened, size
from hpcrun.tools.init.starter import job_choice
from hpcrun.tools.init.starter.job_choice import JobChoice, PartitionUse
from hpcrun.tools.init.starter.python_search import RUNNING, FoundPython
from hpcrun.tools.init.starter.root_choice import RootChoice
from hpcrun.tools.init.starter.survey import Survey

_WIDEST, _LONGEST, _COLUMN = 120, 400, 32
# Words that YAML takes for text, as it stands.
_PLAIN = re.compile(r"[A-Za-z_/][\w./-]*(?::[A-Za-z_][\w./-]*)?", re.ASCII)
_TAKEN = {"true", "false", "yes", "no", "on", "off", "null", "y", "n", "~"}
SPEC, PROGRAM, SCHEMA = "experiment.yaml", "train.py", "spec.schema.json"
# In the directory above the profiles'.
PROFILE_SCHEMA = "profile.schema.json"
# In the spec's second line; a project that has it is a starter, whatever became of it.
MARK = "Written by `hpcrun init`"
_LOCAL_RANKS = 2
_MOST_ROWS = 40
# Names of profiles that mean something else.
_RESERVED = {"local": "local-slurm"}
_CONS_TRES = "select/cons_tres"
_TOLD = """
JobRequeue PreemptType PreemptMode PreemptParameters KillWait AuthInfo MaxJobCount MinJobAge
SelectType SelectTypeParameters AccountingStorageType AccountingStorageEnforce TopologyPlugin
"""


def value(given: object) -> str:
    """Return a scalar or a list of scalars as YAML; text is quoted where it has to be."""
    if isinstance(given, (list, tuple)):
        return f"[{', '.join(map(json.dumps, given))}]"
    if isinstance(given, str) and _PLAIN.fullmatch(given) and given.lower() not in _TAKEN:
        return given
    return json.dumps(given)


class CommentedYaml:
    """Lines of a file, from top to bottom."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def add(self, key: str, given: object, comment: str) -> None:
        """Add ``key: value``, with the comment behind it, or above where that is too long."""
        self.line(f"{key}: {value(given)}", comment)

    def line(self, text: str, comment: str = "") -> None:
        """Add a line of ours, with a comment."""
        told = shortened(one_line(comment), _LONGEST)
        if told and max(len(text), _COLUMN) + len(told) > _WIDEST:
            self._lines.append(f"{' ' * (len(text) - len(text.lstrip()))}# {told}")
            told = ""
        self._lines.append(f"{text:<{_COLUMN}}  # {told}" if told else text)

    def comment(self, *texts: str) -> None:
        """Add comments, each on a line of its own."""
        self._lines += [f"# {shortened(one_line(text), _LONGEST)}".rstrip() for text in texts]

    def section(self, title: str, rows: Iterable[str]) -> None:
        """Add comments below a title; nothing without rows."""
        found = list(rows)
        if found:
            self.comment(title, *(f"  {row}" for row in found))

    def text(self) -> str:
        return "\n".join(self._lines) + "\n"


def experiment_name(directory: str) -> str:
    """Return the name of the experiment of a directory of this name."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", directory).strip("-.")[:LONGEST_NAME]
    return plain if plain[:1].isalpha() else f"starter-{plain}"[:LONGEST_NAME].rstrip("-.")


def spec(
    name: str,
    cluster: str,
    job: JobChoice | None,
    python: FoundPython | None,
    kept: Mapping[str, Any] | None = None,
) -> str:
    """Return the spec of a starter project.

    Parameters
    ----------
    job
        None on this machine alone.
    python
        None where none can train.
    kept
        What an older profile says of jobs, so that the spec says the rest; None for a new one.
    """
    out = CommentedYaml()
    out.comment(
        f"yaml-language-server: $schema={SCHEMA}",
        f"{MARK}, and yours from now on. All keys: hpcrun help specs",
        _how(job),
    )
    out.add("name", name, "its directory below the root")
    out.add("cluster", cluster, "its profile" if job else "this machine; no Slurm is asked")
    out.add("entry", f"{PROGRAM}:train", "a function that is called on every rank")
    out.line("config: {seed: 0, width: 64, total_steps: 200}", "session.config of the function")
    out.line("deepspeed:", "DeepSpeed's own configuration")
    out.line("  train_micro_batch_size_per_gpu: 8")
    out.line("  gradient_accumulation_steps: 1")
    out.line("  zero_optimization: {stage: 1}")
    out.line("  optimizer: {type: AdamW, params: {lr: 3.0e-3, torch_adam: true}}")
    out.line("resources:", "of one run; what is not here the cluster's profile says" if job else "")
    _spec_resources(out, job, kept)
    out.line("checkpoint: {every: 50}", "steps; a run that is stopped goes on from the newest")
    out.line("objective: {metric: loss, mode: min}", 'what "best" means in hpcrun results')
    if python is None:
        lacking = "no Python with torch and deepspeed was found: give the path of one"
        out.line("# environment: {python: /path/to/bin/python}", lacking)
    elif python.origin != RUNNING:
        out.line("environment:")
        out.add("  python", python.executable, f"{python.origin}; the job's Python")
    return out.text()


def _how(job: JobChoice | None) -> str:
    if job is None:
        return "hpcrun submit trains on this machine."
    here = "cluster=local gpus_per_node=0" if job.gpus_per_node else "cluster=local"
    return (
        "hpcrun check looks for what the cluster would refuse, hpcrun submit trains there, hpcrun "
        f"run {here} here."
    )


def _spec_resources(
    out: CommentedYaml, job: JobChoice | None, kept: Mapping[str, Any] | None
) -> None:
    if job is None:
        out.add("  ntasks_per_node", _LOCAL_RANKS, "ranks")
        out.add("  time", "00:15:00", "the time limit")
        return
    chosen = {"partition": job.use.name, "account": job.use.account, "qos": job.use.qos}
    for key, given in chosen.items():
        if kept is not None and given and not kept.get(key):
            out.add(f"  {key}", given, "of which the profile says nothing")
    few = "" if job.nodes >= job_choice.NODES else ": no more can be had for a first job"
    out.add("  nodes", job.nodes, f"scontrol: {job.use.name} has them{few}")
    if job.gpus_per_node:
        out.add(
            "  gpus_per_node", job.gpus_per_node, "scontrol: Gres of its nodes; a rank for each"
        )
    else:
        out.add("  ntasks_per_node", 1, "ranks of a node, on its CPUs")
    out.add("  cpus_per_task", job.cpus_per_task, "scontrol: CPUTot of its nodes; CPUs of a rank")
    if job.mem is not None:
        out.add("  mem", job.mem, "scontrol: RealMemory of its nodes; memory of a node")
    else:
        out.line("  # mem:", "scontrol: SelectTypeParameters does not divide memory")
    out.add("  time", f"00:{job.minutes:02}:00", f"scontrol: within MaxTime of {job.use.name}")


def program() -> str:
    return (resources.directory("jobs") / "starter.py").read_text(encoding="utf-8")


def schema(of: str) -> str:
    """Return the JSON Schema of ``spec`` or ``profile``, as `hpcrun schema` prints it."""
    return json.dumps(json_schema.of(of), indent=1) + "\n"


def profile_name(site: SlurmSite) -> str:
    """Return the name of a profile for a cluster, its own where a profile may be called so."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", site.name).strip("-.") or "cluster"
    name = plain if plain[0].isalpha() else f"c-{plain}"
    name = name[:LONGEST_NAME]
    return _RESERVED.get(name, name)


def profile(
    survey: Survey,
    site: SlurmSite,
    uses: Sequence[PartitionUse],
    job: JobChoice | None,
    root: RootChoice,
    day: str,
    setup: Sequence[str],
) -> str:
    """Return the profile of a cluster.

    Parameters
    ----------
    job
        The first job; None where no partition is open to this user.
    setup
        Shell lines that the Python needs.
    """
    out = CommentedYaml()
    out.comment(
        f"yaml-language-server: $schema=../{PROFILE_SCHEMA}",
        f"The cluster {site.name or '(without a name)'}, as Slurm {site.version} described it to "
        f"{site.user} on {survey.host}, {day}.",
        "Written by `hpcrun init`, and yours from now on: change what is wrong. All keys: hpcrun "
        "help specs",
    )
    out.add("executor", "slurm", "sbatch is in PATH")
    out.add("root", root.root, root.why)
    if job is not None:
        out.line("resources:", "for what a spec does not say")
        _profile_resources(out, site, uses, job)
    else:
        out.line("resources: {}", "scontrol: no partition is open to you, see below")
    _setup(out, survey, setup)
    _limits(out, site, uses)
    out.line("# fabric: {}", "found out on the nodes; this login node may have other networks")
    out.comment("", "What else was found; nothing below changes anything.")
    out.section(
        "partitions (scontrol show partition):", _cut_rows(_partition(one, site) for one in uses)
    )
    out.section("accounts (sacctmgr show associations):", _cut_rows(_accounts(site)))
    out.section("requeue, preemption and limits (scontrol show config):", _settings(site))
    out.section("reservations (scontrol show reservation):", _cut_rows(sorted(site.reservations)))
    _machine(out, survey)
    return out.text()


def _profile_resources(
    out: CommentedYaml, site: SlurmSite, uses: Sequence[PartitionUse], job: JobChoice
) -> None:
    partition = job.use.partition
    nodes = job_choice.nodes_in_words(site, partition)
    out.add("  partition", partition.name, f"scontrol: {job.why}; {nodes}")
    if job.use.account:
        others = {one.account for one in site.associations or ()} - {job.use.account}
        whose = "your default account" if job.use.account == site.default_account else "yours"
        more = f"; also yours: {listed(sorted(others), 8)}" if others else ""
        out.add("  account", job.use.account, f"sacctmgr: {whose}{more}")
    else:
        out.line("  # account:", f"sacctmgr: {_no_account(site)}")
    if job.use.qos:
        own = site.associations_of(job.use.account, partition.name)
        qos = {name for one in own for name in one.qos} - {job.use.qos}
        is_default = job.use.qos == site.qos_without(job.use.account, partition.name)
        why = "what this account has by itself" if is_default else f"{partition.name} needs it"
        more = f"; also yours: {listed(sorted(qos), 8)}" if qos else ""
        out.add("  qos", job.use.qos, f"sacctmgr: {why}{more}")
    _gpu_request(out, site)


def _gpu_request(out: CommentedYaml, site: SlurmSite) -> None:
    """Write how GPUs are asked for, unless as by default."""
    select = site.settings.get("SelectType") or _CONS_TRES
    if not any(node.gpus for node in site.nodes.values()):
        told = "scontrol: no node has Gres=gpu. If nodes have GPUs, take both # away: jobs with"
        out.line("  # gpu_request: none", f"{told} GPUs have their nodes alone")
        out.line("  # node_has_gpus: 8", "and write the number of GPUs of a node")
    elif select != _CONS_TRES:
        out.add("  gpu_request", "gres", f"scontrol: SelectType={select}, GPUs by --gres")


def _no_account(site: SlurmSite) -> str:
    if site.associations is None:
        return f"not known: {site.without_accounting}"
    if not site.associations:
        return f"{site.user} has no association"
    return "no default account"


def _setup(out: CommentedYaml, survey: Survey, setup: Sequence[str]) -> None:
    if setup:
        out.add("setup", [*setup], "its file names the directory of the Python for training")
        return
    loaded = [*(survey.software.loaded or ())]
    if loaded:
        told = "loaded in this shell, and in no job; take the # away if the Python needs them"
        out.line(f"# setup: [{listed([f'module load {one}' for one in loaded], 12)}]", told)
    elif survey.software.modules:
        out.line("# setup: [module load NAME]", "none is loaded in this shell; see below")


def _limits(out: CommentedYaml, site: SlurmSite, uses: Sequence[PartitionUse]) -> None:
    out.line("limits:", "what is more than that is refused before it is submitted")
    if site.array_size is not None:
        told = "scontrol: MaxArraySize, max_array_tasks; submit asks again"
        out.add("  max_array_size", site.array_size, told)
    else:
        out.line("  # max_array_size:", "scontrol: no MaxArraySize was told")
    usable = [one.partition for one in uses if not one.problem]
    times = [one.max_time for one in usable]
    if usable and None not in times:
        longest = max(usable, key=lambda one: one.max_time or 0)
        told = f"scontrol: MaxTime of {longest.name}, the longest of those open to you"
        out.add("  max_time", _slurm_time(longest.max_time or 0), told)
    else:
        out.line("  # max_time:", "scontrol: a partition that is open to you has no limit")
    sizes = {
        one.name: min(filter(None, [one.max_nodes, len(one.nodes)]), default=0) for one in usable
    }
    if any(sizes.values()):
        widest = max(sizes, key=lambda name: sizes[name])
        told = f"scontrol: {widest}, the largest of those open to you"
        out.add("  max_nodes", sizes[widest], told)


def _slurm_time(seconds: int) -> str:
    days, rest = divmod(max(60, seconds), 86400)
    return f"{days}-{rest // 3600:02}:{rest % 3600 // 60:02}:{rest % 60:02}"


def _partition(use: PartitionUse, site: SlurmSite) -> str:
    one = use.partition
    needs_account = not use.problem and use.account not in ("", site.default_account)
    told = [
        "default" if one.is_default else "",
        "hidden" if one.is_hidden else "",
        one.state if one.state != "UP" else "",
        job_choice.nodes_in_words(site, one),
        f"up to {duration(one.max_time)}" if one.max_time is not None else "no time limit",
        f"at most {one.max_nodes} nodes a job" if one.max_nodes is not None else "",
        f"PreemptMode {one.preempt_mode}" if one.preempt_mode else "",
        f"GraceTime {one.grace_seconds} s" if one.grace_seconds else "",
        f"with the account {use.account}" if needs_account else "",
        f"not open to you: {use.problem}" if use.problem else "",
    ]
    return f"{one.name}: {', '.join(filter(None, told))}"


def _accounts(site: SlurmSite) -> Iterator[str]:
    if site.associations is None:
        yield f"not known: {site.without_accounting}"
        return
    if not site.associations:
        yield f"{site.user} has none"
    for one in site.associations:
        where = f" in {one.partition}" if one.partition else ""
        default = ", your default" if one.account == site.default_account else ""
        limits = [
            f"at most {duration(one.limits.max_wall)}" if one.limits.max_wall else "",
            f"at most {one.limits.max_submit} jobs" if one.limits.max_submit is not None else "",
        ]
        told = "".join(f", {limit}" for limit in filter(None, limits))
        yield f"{one.account}{where}{default}: QOS {listed(one.qos, 8) or 'none'}{told}"


def _settings(site: SlurmSite) -> Iterator[str]:
    for name in _TOLD.split():
        if site.settings.get(name) not in (None, "", "(null)", "N/A"):
            yield f"{name}={site.settings[name]}"
    delay = re.search(r"cred_expire=(\d+)", site.settings.get("AuthInfo", ""))
    seconds = int(delay[1]) if delay else 120
    yield f"so a requeued job waits for {seconds + 1} s at least (AuthInfo: cred_expire={seconds})"


def _cut_rows(rows: Iterable[str]) -> list[str]:
    found = list(rows)
    left = len(found) - _MOST_ROWS
    return found[:_MOST_ROWS] + ([f"and {left} more"] if left > 0 else [])


def _machine(out: CommentedYaml, survey: Survey) -> None:
    network = survey.network
    late = ["adapters: their files do not answer"] if network.is_late else []
    out.section(
        f"networks of {survey.host} (/sys/class/net, /sys/class/infiniband):",
        [*network.interfaces, *network.adapters, *late],
    )
    out.section("storage (/proc/self/mountinfo, statvfs):", map(_storage_row, survey.storage))
    loaded = [f"{one}, loaded" for one in survey.software.loaded or ()]
    cut = ["and more, which were not looked at"] if survey.software.is_cut else []
    out.section("modules for training (MODULEPATH):", [*loaded, *survey.software.modules, *cut])
    out.section("Pythons with torch:", map(_python_row, survey.pythons))
    out.section("container images:", survey.software.images)


def _storage_row(one: StoragePlace) -> str:
    if one.problem:
        return f"{one.source}: {one.path} {one.problem}"
    shared = "shared" if one.is_shared else "not known as shared"
    return f"{one.source}: {one.path}, {one.kind or 'unknown'}, {shared}, {size(one.free)} free"


def _python_row(one: FoundPython) -> str:
    build = f" ({one.build})" if one.build and "+" not in (one.torch or "") else ""
    has = f"torch {one.torch or 'missing'}{build}"
    told = f"{one.executable} ({one.origin}): {has}, DeepSpeed {one.deepspeed or 'missing'}"
    return f"{told}; {one.problem}" if one.problem else told

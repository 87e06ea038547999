"""Checks before submission: what would fail in the queue is refused before it.

Each function below is one check. `check_runs` holds those that need the runs to be submitted, in
the order in which they are made.
"""

from __future__ import annotations

import ast
import errno
import functools
import os
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcrun import activity, feature, shared_look
from hpcrun.compile import identity
from hpcrun.container import image_here, runtimes
from hpcrun.errors import ClusterUnreachable, UsageError
from hpcrun.extensions import TRACKERS
from hpcrun.policy import stop_lead_time
from hpcrun.slurm import client
from hpcrun.slurm.parse import parse_duration
from hpcrun.state import files, ledger, manifest, permissions, root_place
from hpcrun.state.init_from import Origin
from hpcrun.state.layout import ExperimentPaths, RunPaths
from hpcrun.state.manifest import Manifest
from hpcrun.state.plan import Plan, RunPlan
from hpcrun.state.spec.blocks import early
from hpcrun.state.spec.executors import Executor
from hpcrun.state.spec.parallel_block import EXPERT, laid_out
from hpcrun.submission.code import code_files
from hpcrun.submission.python_probe import Probe, Unchecked, probe, probe_both
from hpcrun.submission.submission_dir import unwritable
from hpcrun.text import Say, listed, runs_text

_SHOWN = 5
_MOST_BYTES, _MOST_MODULES = 1 << 20, 100
# Each submission takes it along.
_OURS = "hpcrun"


def check_root(root: Path, cluster: Mapping[str, Any], say: Say) -> None:
    """Raise UsageError unless the root is a directory, or can become one, in trusted hands.

    It is not a checkout of hpcrun either; one that lies inside is said, and so are experiments in
    the earlier default root.
    """
    root_place.check_no_checkout(root, say)
    root_place.tell_of_earlier(root, say)
    permissions.check_hands(root, cluster)
    for path in (root, *root.parents):
        if path.is_dir():
            return
        if path.exists():
            raise unwritable(path, NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)))


def check_directory(experiment: ExperimentPaths) -> None:
    """Raise UsageError if the experiment's directory has files of somebody's and no submission.

    Raise it, too, for an experiment of the earlier default root, which would begin anew.
    """
    if experiment.exists:
        return
    root_place.check_not_earlier(experiment.root, experiment.name)
    own = (experiment.annotations, experiment.code, experiment.submit_lock)
    known = {path.name for path in (*own, experiment.runs_directory)}
    names = shared_look.names(experiment.directory)
    others = sorted(name for name in names if name not in known and not name.startswith("."))
    if others:
        raise UsageError(
            f"{experiment.directory} is there already and no experiment: it holds "
            f"{listed(others, 4)}, and experiments have directories of their own",
            hint="give the experiment another name (`name:` in the spec), or another place: "
            "--root DIR, or HPCRUN_ROOT",
        )


def check_executor(cluster: dict[str, Any]) -> None:
    """Raise if the profile submits to Slurm, and there is no sbatch or one for another cluster."""
    if Executor.of(cluster).is_here:
        return
    if not client.available():
        name = cluster.get("name")
        where = "run this on a login node of the cluster"
        if cluster.get("host"):
            where = f"`hpcrun --on {name} submit …` runs it on {cluster['host']}"
        raise ClusterUnreachable(
            f"the cluster profile '{name}' submits to Slurm, and there is no sbatch on PATH",
            hint=f"{where}, or choose `cluster=local`",
        )
    client.check_cluster()


def tell_earlier(plan: Plan, earlier: Collection[Plan], say: Say) -> None:
    """Tell what runs of an experiment have in common with those submitted before."""
    _tell_other_specs(plan, earlier, say)
    _tell_same_values(plan, earlier, say)


def _tell_other_specs(plan: Plan, earlier: Iterable[Plan], say: Say) -> None:
    """Tell that runs of the same experiment were submitted from another file, which is there still.

    A file that was moved is the same spec.
    """
    mine = os.path.realpath(plan.spec_file)
    others = {os.path.realpath(one.spec_file): one for one in earlier}
    for file, one in others.items():
        is_there = one.is_typed or os.path.isfile(file)  # noqa: PTH113 - `is_file` may raise
        # What was typed, and then kept as a file.
        is_saved = one.is_typed and {run.number for run in one.runs}.issubset(
            run.number for run in plan.runs
        )
        if file != mine and is_there and not is_saved:
            where = "made of a command line" if one.is_typed else file
            other = f"hpcrun submit {shlex.quote(mine)} name={plan.name}-2"
            if plan.is_typed:
                other = f"type -J {plan.name}-2 before the program"
            say(
                f"{plan.name}: {runs_text(one.numbers[1])} of it came from another spec, {where}: "
                f"both are the experiment {plan.name}, and equal runs are one; if they are not "
                f"meant to be, give one another name: {other}"
            )


def _tell_same_values(plan: Plan, earlier: Iterable[Plan], say: Say) -> None:
    """Tell which new runs compute what others of the experiment have computed.

    What is swept belongs to a run's identity, so that one that was submitted without a sweep is
    another than the point of a sweep that has its values.
    """
    known = {run.number: run for one in earlier for run in one.runs}
    new = [run for run in plan.runs if run.number not in known]
    ways = {frozenset(run.swept) for run in new}
    others = {
        identity.computed(run): run for run in known.values() if ways - {frozenset(run.swept)}
    }
    if not others:
        return
    pairs = ((run, others.get(identity.computed(run))) for run in new)
    found = [
        (run.number, other.number)
        for run, other in pairs
        if other is not None and frozenset(other.swept) != frozenset(run.swept)
    ]
    if not found:
        return
    shown = ", ".join(f"run {run} those of run {other}" for run, other in found[:3])
    more = f" and {len(found) - 3} more" if len(found) > 3 else ""
    run, other = found[0]
    say(
        f"{plan.name}: new runs have the values of earlier ones, and train again: {shown}{more} "
        f"(swept otherwise, they are others); `hpcrun diff {plan.name}/{other} {plan.name}/{run}` "
        "compares two, and sweep.exclude leaves points out"
    )


def check_counterparts(plan: Plan) -> None:
    """Raise UsageError if a run with ``each: true`` has no run of its number to wait for."""
    for one in plan.depends_on:
        missing = [run.number for run in plan.runs if one.each and run.number not in one.runs]
        if missing:
            raise UsageError(
                f"depends_on: there is no {one.experiment}/{missing[0]} for {plan.name}/"
                f"{missing[0]} to wait for",
                hint="with `each: true` runs of the same number follow each other; leave it out to "
                "wait for all of them",
            )


def check_runs(
    runs: Sequence[RunPlan],
    experiment: ExperimentPaths,
    cluster: dict[str, Any],
    *,
    resumed: Collection[int],
    coming: Collection[str],
    sources: Sequence[Path],
    code_root: Path,
    say: Say,
) -> Probe:
    """Check the runs that are to be submitted, and return the probe of their Python.

    The runs ``resumed`` go on from a checkpoint of their own; all runs wait for the experiments
    ``coming``, whose checkpoints exist by the time they start. They are compiled from the files
    ``sources``, and their code is below ``code_root``.
    """
    going_on = [run for run in runs if run.number in resumed]
    if going_on:
        check_time_limits(going_on, experiment)
    for one in dict.fromkeys(one for run in runs for one in feature.features_of(run.spec)):
        one.preflight(runs, coming, say)
    check_initial_weights(runs, experiment, coming)
    if going_on:
        check_world_sizes(going_on, experiment, say)
    check_images(runs, cluster, coming, say)
    unchecked = permissions.foreign(sources)
    return check_python(runs, cluster, unchecked=unchecked, say=say, code_root=code_root)


def check_time_limits(runs: Sequence[RunPlan], experiment: ExperimentPaths) -> None:
    """Raise UsageError if stopping, as measured in earlier attempts, takes half a time limit.

    Runs that never saved, and those that name ``recovery.stop_before``, were checked by the
    compiler.
    """
    for run in runs:
        wanted = run.resources.time
        limit = parse_duration(wanted)
        save, step = stop_lead_time.measure(experiment.run(run.number))
        if save is None or limit is None or run.recovery.stop_before is not None:
            continue
        before = stop_lead_time.seconds(limit, save=save, step=step)
        if not stop_lead_time.leaves_enough(limit, before):
            raise UsageError(
                f"resources.time is {wanted}, and of that run {run.number} needs {before:.0f} s to "
                f"stop: a save took up to {save:.0f} s, a step {step:.1f} s",
                hint=f"ask for {2 * before / 60:.0f} minutes or more, or name recovery.stop_before",
            )


def check_initial_weights(
    runs: Sequence[RunPlan], experiment: ExperimentPaths, coming: Collection[str] = ()
) -> None:
    """Raise UsageError if a checkpoint that runs are to be initialized from does not exist.

    Runs with a checkpoint of their own do not need it.
    """
    wanted: dict[str, list[int]] = {}
    for run in runs:
        text = run.checkpoint.initialize_from
        if text is None or Origin.parse(text).run.partition("/")[0] in coming:
            continue
        if not shared_look.is_directory(experiment.run(run.number).checkpoints):
            wanted.setdefault(text, []).append(run.number)
    for text, numbers in wanted.items():
        try:
            Origin.parse(text).find(experiment.directory.parent)
        except UsageError as error:
            raise UsageError(f"{runs_text(numbers)}: {error.message}", hint=error.hint) from None


def _inside(run: RunPlan, paths: RunPaths, newest: Manifest) -> int:
    """Return how many ranks a launcher inside, such as torchrun, started for each of the run's."""
    if run.entry.kind == "function":
        return 1
    sizes = {one.number: one.started.get("world_size") for one in ledger.read(paths)}
    return newest.world_size // (sizes.get(newest.attempt) or newest.world_size) or 1


def _unreachable(newest: Manifest, layout: Mapping[str, int]) -> str | None:
    """Return why a layout cannot go on from a checkpoint of another one; None if it can."""
    if any(name.endswith(".distcp") for name in newest.files):
        others = layout.keys() - {"tensor"}
        return "session.fully_shard knows tensor and data alone" if others else None
    if EXPERT in {**newest.parallel, **layout}:
        return "DeepSpeed converts no experts to another layout"
    if "sequence" in layout:
        return "DeepSpeed converts nothing for parallel.sequence"
    if newest.zero_stage == 0:
        return "DeepSpeed converts the saves of ZeRO 1 to 3 alone to another layout"
    return None


def check_world_sizes(runs: Sequence[RunPlan], experiment: ExperimentPaths, say: Say) -> None:
    """Raise UsageError if a checkpoint cannot be resumed with the new number of ranks.

    Checkpoints that will be converted are reported.
    """
    refused: list[str] = []
    converted: list[str] = []
    for run in runs:
        found = manifest.complete(experiment.run(run.number).checkpoints)
        if not found:
            continue
        directory, newest = found[0]
        ranks = run.main_ranks * _inside(run, experiment.run(run.number), newest)
        # Without the block the program may divide the model itself, as it did before.
        layout = newest.parallel if run.parallel is None else laid_out(run.spec["parallel"])
        why = newest.fixed_size
        if newest.parallel != layout:
            sizes = f"{newest.ranks} to {manifest.ranks_text(ranks, layout)}"
            why = why or _unreachable(newest, layout)
        elif newest.world_size != ranks:
            sizes = f"{newest.world_size} to {ranks} ranks"
        else:
            continue
        if why is not None:
            refused.append(f"run {run.number}, {sizes}: {why} ({directory})")
        else:
            converted.append(f"run {run.number}, {sizes}")
    if refused:
        raise UsageError(
            "these runs cannot go on with other ranks:\n"
            + listed(refused, _SHOWN, "\n", "\nand {} more"),
            hint="ask for the ranks, and the parallel, of before; or start afresh with --new",
        )
    if converted:
        say(
            "checkpoints that are converted for other ranks as the jobs start: "
            + listed(converted, _SHOWN, "; ", "; and {} more")
        )


def check_images(
    runs: Sequence[RunPlan], cluster: Mapping[str, Any], coming: Collection[str], say: Say
) -> None:
    """Raise UsageError if a container's image is of no use here or on nodes; tell if it may be.

    One that is not there yet may be what the experiments ``coming`` make.
    """
    found = {run.container.image: run.container for run in runs if run.container is not None}
    elsewhere = None if Executor.of(cluster).is_here else "other nodes"
    for container in found.values():
        told = image_here.absent(container, " and ".join(coming) or elsewhere, made=bool(coming))
        if told is not None:
            say(told)


def check_python(
    runs: Sequence[RunPlan],
    cluster: dict[str, Any],
    *,
    unchecked: str | None,
    say: Say,
    lacks: Say | None = None,
    fails: Say | None = None,
    code_root: Path | None = None,
) -> Probe:
    """`probe` each Python that the runs use, once; return the first answer.

    None is started for a reason ``unchecked``, such as `hpcrun.state.permissions.foreign` returns.
    A module that the program below ``code_root`` imports and the Python lacks is reported, to
    ``lacks`` where that is given; setup lines that fail are, to ``fails``.
    """
    answers: dict[str, Probe] = {}
    failed: set[str] = set()
    # Runs of a sweep share their file.
    modules_of = functools.cache(needed_modules)
    for run in runs:
        own = run.environment
        # What is built from a lock has its own, and trackers run in this Python.
        trains = run.entry.kind == "function" and own.lock is None
        needs = dict.fromkeys(("torch", "deepspeed") if trains else (), "a function entry")
        for name in run.trackers:
            library = name if name in TRACKERS.own else getattr(TRACKERS.load(name), "library", "")
            needs |= {library: f"tracking.{name}"} if library else {}
        for one in feature.features_of(run.spec):
            needs |= one.needs(run)
        modules: dict[str, str] = {}
        asked = code_root if own.lock is None else None
        for file in () if asked is None else code_files.entry_files(run.entry, asked):
            modules = modules_of(file, asked, run.entry.import_root or ".")
        container, python = run.container, str(own.python)
        if container is not None:
            python = f"{container.python} in {container.image or 'the container'}"
            if runtimes.of(container).is_of_srun and Executor.of(cluster).is_here:
                raise UsageError(
                    f"environment.container.runtime: {str(container.runtime).capitalize()} starts "
                    "containers on Slurm alone",
                    hint="another runtime, or another cluster",
                )
        key = repr((own.python, own.setup, own.variables, container, needs, [*modules]))
        if key in answers:
            continue
        try:
            if unchecked is not None:
                raise Unchecked(unchecked)
            setup = [*cluster["setup"], *own.setup]
            after = " after the setup lines" if setup else ""
            variables = {**cluster["variables"], **early(own.variables)}
            with activity.doing(f"starting the job's Python, {python},{after} to see what it has"):
                answers[key] = (
                    probe(python, setup=setup, variables=variables, needs=needs, modules=[*modules])
                    if container is None
                    else probe_both(run, container, setup, variables, needs, [*modules])
                )
            told = "; ".join(answers[key].failed_setup)
            if told and told not in failed:
                failed.add(told)
                (fails or say)(f"the setup lines fail here, and the job would go on: {told}")
            for name in answers[key].missing:
                (lacks or say)(
                    f"{modules.get(name, 'the program')} imports {name}, which {python} does "
                    "not have; install it there, or name another in "
                    f"environment.{'python' if container is None else 'container'}"
                )
        except Unchecked as why:
            needed = f", nor that it has {' and '.join(needs)}" if needs else ""
            say(f"{python} is not tried before the job{needed}: {why}")
            answers[key] = Probe(python, None, {}, str(why))
    return next(iter(answers.values()))


def needed_modules(file: str, code_root: Path, import_root: str) -> dict[str, str]:
    """Return module -> ``train.py:3`` of what the code does not have itself and cannot do without.

    Only what ``file`` imports outside of functions, ``try`` and ``if``; empty if it cannot be read,
    or changes where modules are looked for. The paths are relative to the code's root.
    """
    try:
        text = files.read_bytes(code_root / file, _MOST_BYTES)
        tree = ast.parse(text)
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return {}
    if b"sys.path" in text or b"addsitedir" in text:
        return {}
    roots = [code_root, (code_root / file).parent, code_root / import_root]
    found: dict[str, str] = {}
    for node in tree.body:
        names = []
        if isinstance(node, ast.Import):
            names = [one.name for one in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            names = [node.module]
        for name in (name.partition(".")[0] for name in names):
            own = any((root / name).exists() or (root / f"{name}.py").exists() for root in roots)
            if not own and name != _OURS and len(found) < _MOST_MODULES:
                found.setdefault(name, f"{file}:{node.lineno}")
    return found

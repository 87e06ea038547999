"""Export of a run's weights, by the run's own Python: this one may have no torch.

`hpcrun.tools.weights.export_program` reads and writes. Here are the choice of the checkpoint and of
the Python, and the directory, which appears once it is complete. A Python of another user is not
started, nor is any that another user's plan names. Of another user's checkpoint tensors alone are
read (`hpcrun.run.checkpoint.trust`).
"""

from __future__ import annotations

import collections
import contextlib
import json
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hpcrun
from hpcrun import activity, host, shared_look
from hpcrun.bounded_json import parse_line
from hpcrun.errors import CheckpointError, UsageError
from hpcrun.observe.read.selection import Selected
from hpcrun.policy.retention import Retention
from hpcrun.state import manifest, permissions, session_log
from hpcrun.state.manifest import Manifest
from hpcrun.state.spec.blocks import early
from hpcrun.submission import python_probe
from hpcrun.text import one_line, shortened, size

# In what is exported: where it came from.
RECORD = "hpcrun-weights.json"
# In the directory that the program works in: files that are copied beside the weights.
BESIDE = "export"
_SHOWN = 8
_TAIL = 5
_MOST_LINE = 50_000_000
# Only hpcrun itself is ours: all else is imported from where the job's Python has it.
_START = """
import importlib.util, sys
sys.path[:] = [entry for entry in sys.path if entry[:1] == "/" and entry != "/"]
spec = importlib.util.spec_from_file_location(
    "hpcrun", sys.argv[1] + "/__init__.py", submodule_search_locations=[sys.argv[1]]
)
sys.modules["hpcrun"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sys.modules["hpcrun"])
from hpcrun.tools.weights import export_program
export_program.main()
"""
_NO_GPU = {"CUDA_VISIBLE_DEVICES": "", "DS_ACCELERATOR": "cpu", "PYTHONDONTWRITEBYTECODE": "1"}


@dataclass(frozen=True)
class WeightsRequest:
    """An export: a checkpoint, and the form that its weights get."""

    one: Selected
    checkpoint: Path
    entry: Manifest
    format: str = "safetensors"
    dtype: str | None = None
    """``fp32``, ``bf16`` or ``fp16``; None leaves each tensor as it is."""
    shard_bytes: int = 5 * 10**9
    python: str | None = None
    """The Python to use in place of the run's."""
    averaged: bool = False
    """The averages of ``optimization.ema`` in place of the weights."""


def split_step(word: str) -> tuple[str, int | None]:
    """Split ``RUN[@STEP]``, as ``checkpoint.initialize_from`` has it too."""
    run, at, step = word.rpartition("@")
    if at and run and step.isascii() and step.isdigit() and len(step) <= 15:
        return run, int(step)
    return word, None


def choose(one: Selected, step: int | None, *, best: bool) -> tuple[Path, Manifest]:
    """Return the checkpoint of a step, the best by the objective, or the newest.

    Raises UsageError if there is none.
    """
    found = manifest.complete(one.paths.checkpoints)
    if not found:
        raise UsageError(
            f"{one.name} has no complete checkpoint of hpcrun's", hint=_without_checkpoint(one)
        )
    if best:
        rules = Retention.of(one.run)
        rated = rules.best_first(found)
        if not rated:
            raise UsageError(
                f"no checkpoint of {one.name} has a value of {rules.metric}, the objective",
                hint="objective.metric names what the program logs; @STEP takes a step",
            )
        return rated[0], dict(found)[rated[0]]
    for directory, entry in found:
        if step in (None, entry.step):
            return directory, entry
    steps = sorted({entry.step for _, entry in found})
    shown = ", ".join(map(str, steps[-_SHOWN:]))
    raise UsageError(
        f"{one.name} has no checkpoint of step {step}",
        hint=f"it has those of steps {'…, ' if len(steps) > _SHOWN else ''}{shown}; "
        "checkpoint.keep_every keeps more",
    )


def plan(wanted: WeightsRequest) -> dict[str, Any]:
    """Return what `export` would write, without reading more than the files' heads."""
    return _ask(wanted, None)


def export(wanted: WeightsRequest, target: Path, *, force: bool = False) -> dict[str, Any]:
    """Write the weights to the new directory ``target``; return its record.

    It appears when it is complete; Ctrl-C leaves nothing. ``force`` replaces an earlier export.
    Raises UsageError if ``target`` is taken, CheckpointError if the weights cannot be written.
    """
    check_target(target, force=force)
    with host.interrupted_from_outside(), _draft(target) as draft:
        found = _ask(wanted, draft)
        check_target(target, force=force)
        if target.exists():
            # Beside it, so that no moment passes in which a kill leaves neither.
            aside = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
            target.rename(aside / target.name)
            draft.rename(target)
            shutil.rmtree(aside, ignore_errors=True)
        else:
            draft.rename(target)
        with contextlib.suppress(OSError):
            manifest.sync_directory(target.parent)
    return found


def check_target(target: Path, *, force: bool) -> None:
    """Raise UsageError unless ``target`` can be made, or with ``force`` be replaced."""
    if not target.parent.is_dir():
        raise UsageError(f"-o {target}: there is no directory {target.parent}")
    if not os.path.lexists(target):
        return
    if not force:
        raise UsageError(
            f"-o {target}: it is there already",
            hint="name a new directory; --force replaces an earlier export",
        )
    if target.is_symlink() or not (target / RECORD).is_file():
        raise UsageError(
            f"-o {target}: --force replaces what hpcrun weights has written, and there is no "
            f"{RECORD} in it",
            hint="name a new directory",
        )


@contextlib.contextmanager
def _draft(target: Path) -> Iterator[Path]:
    """Make a directory beside the target, and remove it with all that is in it if it is there."""
    draft = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        draft.chmod(0o777 & ~permissions.umask())
        yield draft
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _ask(wanted: WeightsRequest, target: Path | None) -> dict[str, Any]:
    one = wanted.one
    question = {
        "checkpoint": str(wanted.checkpoint),
        "target": None if target is None else str(target.absolute()),
        "record": RECORD,
        "format": wanted.format,
        "dtype": wanted.dtype,
        "shard_bytes": wanted.shard_bytes,
        "averaged": wanted.averaged,
        "beside": str(_program_directory(one) / BESIDE),
        "about": {
            "run": one.name,
            "step": wanted.entry.step,
            "averaged": wanted.averaged,
            "checkpoint": str(wanted.checkpoint),
            "hpcrun": hpcrun.__version__,
        },
    }
    argv, environment = _command(wanted)
    doing = "starting the run's Python"
    said: collections.deque[str] = collections.deque(maxlen=_TAIL)
    with activity.doing(lambda: doing):
        process = _start(argv, environment)
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            listener = threading.Thread(target=_listen, args=(process.stderr, said), daemon=True)
            listener.start()
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(json.dumps(question))
                process.stdin.close()
            answer: Mapping[str, Any] = {}
            while line := process.stdout.readline(_MOST_LINE):
                found = parse_line(line.encode())
                answer = found if isinstance(found, dict) else {}
                doing = _doing(answer) or doing
            process.wait()
            listener.join(1)
        except BaseException:
            host.end_session(process)
            raise
    if isinstance(answer.get("result"), dict):
        return dict(answer["result"])
    if isinstance(answer.get("problem"), str):
        hint = answer.get("hint")
        raise CheckpointError(
            one_line(shortened(answer["problem"])), hint=hint if isinstance(hint, str) else None
        )
    words = "\n".join(f"  {one_line(line)}" for line in said)
    raise CheckpointError(
        f"the weights were not read: {argv[0]} ended with code {process.returncode}"
        + (f"; it said:\n{words}" if words else "")
    )


def _listen(stream: Any, said: collections.deque[str]) -> None:
    # Closed at an interrupt.
    with contextlib.suppress(ValueError, OSError):
        said.extend(stream)


def _doing(answer: Mapping[str, Any]) -> str | None:
    doing, done, of = (answer.get(name) for name in ("doing", "done", "of"))
    if not isinstance(doing, str):
        return None
    if isinstance(done, int) and isinstance(of, int):
        return f"{one_line(doing)}: {size(done)} of {size(of)}"
    return one_line(doing)


def _start(argv: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[str]:
    try:
        return host.start_piped(argv, cwd="/", env=dict(environment), stdin=subprocess.PIPE)
    except OSError as error:
        raise UsageError(
            f"environment.python: {argv[0]}: {error.strerror}",
            hint="--python names another one that has torch and deepspeed",
        ) from None


def _command(wanted: WeightsRequest) -> tuple[list[str], dict[str, str]]:
    one = wanted.one
    own, cluster = one.run.environment, one.plan.cluster
    source = one.planned.paths
    setup = [*cluster.get("setup", ()), *own.setup]
    variables = {**cluster.get("variables", {}), **early(own.variables)}
    foreign = python_probe.unchecked(source) or permissions.foreign([source.plan])
    if foreign is not None:
        if wanted.python is None:
            raise UsageError(
                f"the Python of {one.name} is not started here: {foreign}",
                hint="--python names one of yours that has torch and deepspeed",
            )
        setup, variables = [], {}
    python = wanted.python or str(own.python)
    try:
        found = python_probe.probe(python, setup=setup, variables=variables)
    except python_probe.Unchecked as why:
        raise UsageError(
            f"{python} is not started here: {why}",
            hint="--python names one of yours that has torch and deepspeed",
        ) from None
    missing = [name for name in ("torch", "deepspeed") if found.libraries.get(name) is None]
    if missing:
        raise UsageError(
            f"{python} (Python {found.version}) has no {' and '.join(missing)} on this machine, "
            "and they read the checkpoint",
            hint="--python names one that has them; or run this in a job of your own",
        )
    package = str(Path(hpcrun.__file__).resolve().parent)
    argv = [python, "-c", _START, package]
    return python_probe.in_job_environment(argv, setup, {**variables, **_NO_GPU})


def _program_directory(one: Selected) -> Path:
    """Return where the files lie that rank 0's program wrote to relative paths."""
    base = one.paths.rank_work(0) if one.run.has_rank_directories else one.paths.work
    return base / one.plan.directory


def _without_checkpoint(one: Selected) -> str:
    """Say what to do with a run whose program saves by itself, or that has saved nothing."""
    saves = [
        event
        for attempt in one.paths.attempts()
        for event in session_log.read_any(attempt).of(session_log.SAVED)
        if isinstance(event.record.get("checkpoint"), str)
    ]
    paths = [Path(event.record["checkpoint"]) for event in saves]
    there = [path for path in paths if shared_look.is_there(path)]
    if not there:
        return (
            "session.save, or checkpoint.every, makes one; a program without a session saves by "
            "itself, and nothing of that was seen"
        )
    newest = there[-1]
    return f"its program saves by itself: the newest is {newest}. {_own_form(newest)}"


def _own_form(path: Path) -> str:
    """Say what a save of a program's own is, and what reads it."""
    if path.suffix == ".ckpt":
        return 'Lightning: torch.load(it, weights_only=True)["state_dict"] are the weights'
    if path.is_dir() and any(path.glob("*.safetensors")):
        return "It is in Hugging Face's layout already: copy it"
    if path.is_dir() and any(path.glob("global_step*")):
        return f"DeepSpeed wrote it: python {path}/zero_to_fp32.py {path} DIR"
    return "hpcrun does not know its form: load it with the program that wrote it"

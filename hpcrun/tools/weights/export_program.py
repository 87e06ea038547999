"""The program that writes a checkpoint's weights; `hpcrun.tools.weights.weights` starts it.

It runs with the run's own Python, where torch and DeepSpeed are. A question comes as JSON on
standard input; each line of standard output is JSON: ``{"doing": …, "done": …, "of": …}`` in bytes,
and at the end ``{"result": …}`` or ``{"problem": …, "hint": …}``. What libraries print goes to
standard error.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hpcrun.errors import CheckpointError
from hpcrun.run.checkpoint import checkpoint_files
from hpcrun.run.weights import saved_weights
from hpcrun.state import files, manifest
from hpcrun.state.manifest import Manifest
from hpcrun.text import size
from hpcrun.tools.weights import weight_files

# Of a file beside the weights: a tokenizer's is the largest of them.
_MOST_BESIDE = 1 << 28
_REPORTED = 0.2
# Left free beside the weights, for their index and the file system's own.
_SPARE = 1 << 20


def main() -> None:
    """Answer the question on standard input."""
    # Ours alone: libraries print to descriptor 1.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def tell(**line: Any) -> None:
        answers.write(json.dumps(line) + "\n")
        answers.flush()

    try:
        tell(result=export(json.loads(sys.stdin.read()), tell))
    except CheckpointError as error:
        tell(problem=error.message, hint=error.hint)
    except OSError as error:
        tell(problem=f"{error.filename or 'the files'}: {error.strerror or error}", hint=None)
    except MemoryError:
        tell(problem="there is not enough memory here", hint="try it in a job, or on another node")
    except Exception as error:  # what a file holds is up to who wrote it
        import traceback

        traceback.print_exc()
        tell(problem=f"the checkpoint cannot be read: {type(error).__name__}: {error}", hint=None)


def export(question: Mapping[str, Any], tell: Callable[..., None]) -> dict[str, Any]:
    """Write the weights to the empty directory ``target``; return what is in it.

    ``question`` has ``checkpoint``, ``target`` (None only plans), ``format``, ``dtype``,
    ``shard_bytes``, ``averaged``, ``beside`` (a directory of files to be copied, or None)
    and ``about`` (for the record). Raises CheckpointError if the checkpoint is damaged, or cannot
    be put together.
    """
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    checkpoint = Path(question["checkpoint"])
    entry = manifest.inspect(checkpoint)
    if not isinstance(entry, Manifest):
        why = entry.message if entry else "it is not complete any more"
        raise CheckpointError(f"{checkpoint}: {why}")
    if question["target"] is not None:
        _verify(checkpoint, entry, tell)
    tell(doing="reading the checkpoint")
    weights = saved_weights.collect(checkpoint, entry.files)
    if question.get("averaged"):
        saved_weights.put_averaged(weights, checkpoint)
    layout = weight_files.Layout.of(
        weights, question["format"], question["dtype"], question["shard_bytes"]
    )
    beside = _beside(question["beside"])
    found: dict[str, Any] = {
        **question["about"],
        "zero_stage": entry.zero_stage,
        "world_size": entry.world_size,
        "metrics": entry.metrics,
        "format": layout.format,
        "dtypes": layout.dtypes,
        "tensors": len(weights.tensors) - len(weights.tied),
        "parameters": weight_files.parameters(weights),
        "bytes": layout.bytes,
        "tied": layout.left_out,
        "notes": weights.notes,
        "files": {shard.file: {"bytes": shard.bytes} for shard in layout.shards},
    }
    if question["target"] is not None:
        target = Path(question["target"])
        _check_room(target, layout.bytes + sum(map(len, beside.values())))
        written = 0
        told = time.monotonic()

        def wrote(count: int) -> None:
            nonlocal written, told
            written += count
            if time.monotonic() - told > _REPORTED:
                told = time.monotonic()
                tell(doing="writing the weights", done=written, of=layout.bytes)

        found["files"] = layout.write(target, wrote)
        for name, data in beside.items():
            found["files"][name] = weight_files.write_bytes(target / name, data)
        weight_files.write_json(target / question["record"], found)
        manifest.sync_directory(target)
    else:
        found["files"] |= {name: {"bytes": len(data)} for name, data in beside.items()}
    return found


def _verify(checkpoint: Path, entry: Manifest, tell: Callable[..., None]) -> None:
    done = 0
    for name, expected in sorted(entry.files.items()):
        tell(doing="checking the checkpoint", done=done, of=entry.bytes)
        if (fault := checkpoint_files.damage(checkpoint, name, expected)) is not None:
            raise CheckpointError(
                f"{checkpoint}: {fault.message}",
                hint="take an earlier step of the run, as RUN@STEP"
                if fault.lasting
                else "try again, or take another step, as RUN@STEP",
            )
        done += expected.bytes


def _check_room(target: Path, needed: int) -> None:
    free = shutil.disk_usage(target).free
    if free < needed + _SPARE:
        raise CheckpointError(
            f"the weights take {size(needed)}, and {target.parent} has room for {size(free)}",
            hint="name a directory on another file system; --dtype bf16 takes half of fp32",
        )


def _beside(directory: str | None) -> dict[str, bytes]:
    """Return the regular files of a directory, such as config.json; links are passed over."""
    if directory is None or not os.path.isdir(directory):  # noqa: PTH112
        return {}
    return {
        path.name: files.read_bytes(path, _MOST_BESIDE)
        for path in sorted(Path(directory).iterdir())
        if path.is_file() and not path.is_symlink()
    }

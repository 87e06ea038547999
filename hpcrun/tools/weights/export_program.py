"""The program that writes a checkpoint's weights; `hpcrun.tools.weights.weights` starts it.

It runs with the run's own Python, where torch and DeepSpeed are. A question comes as JSON on
standard input; each line of standard output is JSON: ``{"doing": …, "done": …, "of": …}`` in bytes,
and at the end ``{"result": …}`` or ``{"problem": …, "hint": …}``. What libraries print goes to
standard error.

Shards of weights and their index are named as Hugging Face names them. The format of safetensors is
written here, so that the job's Python needs no package more than it trained with, and one tensor at
a time, so that memory holds the largest tensor and not a shard. It is the length of a header in 8
bytes, a header in JSON, and the tensors' bytes one after another.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from hpcrun.errors import CheckpointError
from hpcrun.run.checkpoint import checkpoint_files
from hpcrun.run.weights import saved_weights
from hpcrun.run.weights.saved_weights import SavedWeights
from hpcrun.state import files, manifest
from hpcrun.state.manifest import Manifest
from hpcrun.text import size

FORMATS = {"safetensors": "model.safetensors", "pt": "pytorch_model.bin"}
DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
_CODES = {
    **{"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16"},
    **{"int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8", "uint8": "U8", "bool": "BOOL"},
    **{"float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2"},
}
_ALIGNED = 8
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
    layout = Layout.of(weights, question["format"], question["dtype"], question["shard_bytes"])
    beside = _beside(question["beside"])
    found: dict[str, Any] = {
        **question["about"],
        "zero_stage": entry.zero_stage,
        "world_size": entry.world_size,
        "metrics": entry.metrics,
        "format": layout.format,
        "dtypes": layout.dtypes,
        "tensors": len(weights.tensors) - len(weights.tied),
        "parameters": parameters(weights),
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
            found["files"][name] = write_bytes(target / name, data)
        write_json(target / question["record"], found)
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


@dataclass(frozen=True)
class Shard:
    """One file of weights: the names of its tensors, and their bytes together."""

    file: str
    names: tuple[str, ...]
    bytes: int


@dataclass(frozen=True)
class Layout:
    """The division of a model into shards.

    ``dtype`` is the one of ``DTYPES`` that tensors of floating-point numbers are cast to; None
    leaves each as it is.
    """

    weights: SavedWeights
    format: str
    dtype: str | None
    shards: tuple[Shard, ...]

    @classmethod
    def of(cls, weights: SavedWeights, form: str, dtype: str | None, most_bytes: int) -> Layout:
        """Divide: a shard has at most ``most_bytes``, or one tensor that is larger.

        A tied name is beside the one that it is tied to (``pt``), or left out (``safetensors``,
        which knows no shared tensors).
        """
        whole = FORMATS[form]
        groups: list[tuple[list[str], int]] = []
        for name, tensor in untied(weights).items():
            count = _bytes(tensor, dtype)
            if not groups or groups[-1][1] + count > most_bytes:
                groups.append(([], 0))
            names, before = groups[-1]
            names.append(name)
            groups[-1] = names, before + count
        place = {name: number for number, (names, _) in enumerate(groups) for name in names}
        if form == "pt":
            for name, first in weights.tied.items():
                groups[place[first]][0].append(name)
        stem, dot, suffix = whole.partition(".")
        shards = tuple(
            Shard(
                whole
                if len(groups) == 1
                else f"{stem}-{number:05d}-of-{len(groups):05d}{dot}{suffix}",
                tuple(names),
                count,
            )
            for number, (names, count) in enumerate(groups, 1)
        )
        return cls(weights, form, dtype, shards)

    @property
    def bytes(self) -> int:
        return sum(shard.bytes for shard in self.shards)

    @property
    def left_out(self) -> dict[str, str]:
        """Name -> the name of the equal tensor that stands for it in the files."""
        return dict(self.weights.tied) if self.format == "safetensors" else {}

    @property
    def dtypes(self) -> dict[str, int]:
        """The dtypes in the files, such as ``bfloat16``, and the bytes of each."""
        found: dict[str, int] = {}
        for tensor in untied(self.weights).values():
            dtype = str(_dtype(tensor, self.dtype)).removeprefix("torch.")
            found[dtype] = found.get(dtype, 0) + _bytes(tensor, self.dtype)
        return found

    def write(self, directory: Path, wrote: Callable[[int], object]) -> dict[str, dict[str, Any]]:
        """Write all files, durably; return name -> ``bytes`` and ``sha256``.

        ``wrote`` is told of bytes as they are written.
        """
        files = {}
        for shard in self.shards:
            with (directory / shard.file).open("xb") as stream:
                target = _Digested(stream, wrote)
                if self.format == "safetensors":
                    self._write_safetensors(shard, target)
                else:
                    self._write_torch(shard, target)
                stream.flush()
                os.fsync(stream.fileno())
            files[shard.file] = target.record
        if len(self.shards) > 1:
            index = f"{FORMATS[self.format]}.index.json"
            where = {name: shard.file for shard in self.shards for name in shard.names}
            content = {"metadata": {"total_size": self.bytes}, "weight_map": where}
            files[index] = write_json(directory / index, content)
        return files

    def _write_safetensors(self, shard: Shard, target: _Digested) -> None:
        header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        end = 0
        for name in shard.names:
            tensor = self.weights.tensors[name]
            dtype = _dtype(tensor, self.dtype)
            code = _CODES.get(str(dtype).removeprefix("torch."))
            if code is None or name in header:
                raise CheckpointError(
                    f"safetensors has no place for {name}, of type {dtype}",
                    hint="--format pt has one",
                )
            begin, end = end, end + _bytes(tensor, self.dtype)
            header[name] = {
                "dtype": code,
                "shape": list(tensor.shape),
                "data_offsets": [begin, end],
            }
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % _ALIGNED)
        target.write(len(text).to_bytes(8, "little") + text)
        for name in shard.names:
            target.write(_raw(self._tensor(name)))

    def _write_torch(self, shard: Shard, target: _Digested) -> None:
        import torch

        content: dict[str, Any] = {}
        for name in shard.names:
            first = self.weights.tied.get(name, name)
            content[name] = content[first] if first in content else self._tensor(first).clone()
        torch.save(content, target)

    def _tensor(self, name: str) -> Any:
        tensor = self.weights.tensors[name]
        return tensor.contiguous().to(_dtype(tensor, self.dtype))


class _Digested:
    """A stream that ``torch.save`` can write to, with its size and SHA-256."""

    def __init__(self, stream: BinaryIO, wrote: Callable[[int], object]) -> None:
        self._stream, self._wrote = stream, wrote
        self._digest, self._size = hashlib.sha256(), 0

    def write(self, data: Any) -> int:
        """Append bytes."""
        self._stream.write(data)
        self._digest.update(data)
        self._size += len(data)
        self._wrote(len(data))
        return len(data)

    def flush(self) -> None:
        self._stream.flush()

    @property
    def record(self) -> dict[str, Any]:
        return {"bytes": self._size, "sha256": self._digest.hexdigest()}


def write_json(path: Path, content: Mapping[str, Any]) -> dict[str, Any]:
    """Write a new JSON file, durably; return its ``bytes`` and ``sha256``."""
    return write_bytes(path, json.dumps(content, indent=2).encode() + b"\n")


def write_bytes(path: Path, data: bytes) -> dict[str, Any]:
    """Write a new file, durably; return its ``bytes`` and ``sha256``."""
    with path.open("xb") as stream:
        target = _Digested(stream, bool)
        target.write(data)
        stream.flush()
        os.fsync(stream.fileno())
    return target.record


def _dtype(tensor: Any, wanted: str | None) -> Any:
    import torch

    if wanted is None or not tensor.dtype.is_floating_point:
        return tensor.dtype
    return getattr(torch, DTYPES[wanted])


def _bytes(tensor: Any, wanted: str | None) -> int:
    return int(tensor.shape.numel()) * int(_dtype(tensor, wanted).itemsize)


def _raw(tensor: Any) -> Any:
    """Return a tensor's bytes, without a copy."""
    import torch

    return memoryview(tensor.reshape(-1).view(torch.uint8).numpy())


def untied(weights: SavedWeights) -> dict[str, Any]:
    """Return the tensors that are tied to no earlier one."""
    return {name: one for name, one in weights.tensors.items() if name not in weights.tied}


def parameters(weights: SavedWeights) -> int:
    """Return the count of numbers in the parameters, each once."""
    own = untied(weights).items()
    return sum(int(one.shape.numel()) for name, one in own if name not in weights.buffers)

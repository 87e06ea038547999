"""Files of torch.distributed.checkpoint: the parts of tensors that ranks hold, and their index.

Each rank has one file; rank 0's index says which part of which tensor lies where, so that any
number of ranks can read them, and programs of others can, too. The index is a pickle: `index` loads
nothing of it but what an index is made of.
"""

from __future__ import annotations

import dataclasses
import io
import pickle
import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from hpcrun.errors import CheckpointError
from hpcrun.run.checkpoint.deepspeed_io import UnreadableFile
from hpcrun.state import files

INDEX = ".metadata"
# How far the training is, beside torch's files.
COURSE = "sharded-training.pt"
MODEL, OPTIMIZER = "model", "optimizer"
_KNOWN = {
    "torch.distributed.checkpoint.metadata": {
        *("BytesStorageMetadata", "ChunkStorageMetadata", "Metadata", "MetadataIndex"),
        *("StorageMeta", "TensorProperties", "TensorStorageMetadata", "_MEM_FORMAT_ENCODING"),
    },
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
    "torch": {"Size"},
    "torch.serialization": {"_get_layout"},
}


class _Counted:
    """A target of ``torch.save`` that counts what is written."""

    def __init__(self, target: Any) -> None:
        self._target, self.size = target, 0

    def write(self, data: Any) -> int:
        self.size += len(data)
        self._target.write(data)
        return len(data)

    def flush(self) -> None:
        self._target.flush()


def write(state: Mapping[str, Any], directory: Path, save: Callable[[Any, str], None]) -> None:
    """Write a state in parts, each rank its own; collective.

    Parameters
    ----------
    state
        Nested names to tensors, divided or the same on all ranks.
    save
        Takes each file's content and path.
    """
    from torch.distributed import checkpoint

    checkpoint.save(dict(state), storage_writer=_writer(directory, save))


def _writer(directory: Path, save: Callable[[Any, str], None]) -> Any:
    from torch.distributed.checkpoint import StorageWriter
    from torch.distributed.checkpoint.filesystem import CURRENT_DCP_VERSION, _StorageInfo
    from torch.distributed.checkpoint.planner import WriteItemType
    from torch.distributed.checkpoint.storage import WriteResult
    from torch.futures import Future

    class Writer(StorageWriter):  # type: ignore[misc, unused-ignore]
        """Writes as torch's own writer of files does, through ``save``."""

        def reset(self, checkpoint_id: Any = None) -> None: ...

        def set_up_storage_writer(self, is_coordinator: bool, *_: Any, **__: Any) -> None: ...

        def prepare_local_plan(self, plan: Any) -> Any:
            return plan

        def prepare_global_plan(self, plans: list[Any]) -> list[Any]:
            return [
                dataclasses.replace(plan, storage_data=f"__{rank}_0.distcp")
                for rank, plan in enumerate(plans)
            ]

        def write_data(self, plan: Any, planner: Any) -> Any:
            import torch

            name, results = plan.storage_data, []

            def write_items(target: Any) -> None:
                stream = _Counted(target)
                for item in plan.items:
                    begin, data = stream.size, planner.resolve_data(item)
                    if item.type == WriteItemType.BYTE_IO:
                        stream.write(data.getbuffer())
                    else:
                        # A view would be saved with all that it is a view of.
                        torch.save(data.detach().cpu().clone(), stream)
                    length = stream.size - begin
                    info = _StorageInfo(name, begin, length)
                    results.append(WriteResult(item.index, length, info))

            if plan.items:
                # Which `checkpoint_files.save_into` has write itself.
                save(SimpleNamespace(write_to=write_items), str(directory / name))
            done: Any = Future()
            done.set_result(results)
            return done

        def finish(self, metadata: Any, results: list[list[Any]]) -> None:
            metadata.version = CURRENT_DCP_VERSION
            metadata.storage_data = {
                each.index: each.storage_data for part in results for each in part
            }
            content = SimpleNamespace(write_to=lambda target: pickle.dump(metadata, target))
            save(content, str(directory / INDEX))

        @classmethod
        def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
            return True

    return Writer()


def index(directory: Path) -> Any:
    """Return the index of a directory, ``Metadata`` of torch.distributed.checkpoint.

    Raises `UnreadableFile`.
    """
    try:
        with files.open_stream(directory / INDEX) as stream:
            return _IndexReader(stream).load()
    except Exception as error:  # what a file holds is up to who wrote it
        raise UnreadableFile(f"{INDEX} cannot be read: {error}") from error


class _IndexReader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        import torch

        is_type = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        if not is_type and name not in _KNOWN.get(module, ()):
            raise pickle.UnpicklingError(f"it names {module}.{name}, which no index does")
        return super().find_class(module, name)


def sizes(found: Any) -> dict[str, Any]:
    """Return the names of an index's tensors -> ``torch.Size`` of the whole."""
    return {
        name: each.size
        for name, each in found.state_dict_metadata.items()
        if hasattr(each, "chunks")
    }


def read_into(state: Mapping[str, Any], directory: Path, found: Any) -> None:
    """Read into the tensors of a state what this rank needs of them, without other ranks.

    ``found`` is the `index`. Raises `UnreadableFile`; CheckpointError for a state of another form.
    """
    from torch.distributed import checkpoint

    class Reader(checkpoint.FileSystemReader):  # type: ignore[misc, unused-ignore]
        def read_metadata(self, *_: Any, **__: Any) -> Any:
            return found

    try:
        with warnings.catch_warnings():
            # torch takes reading without other ranks for a process without any.
            warnings.simplefilter("ignore", UserWarning)
            checkpoint.load(dict(state), storage_reader=Reader(directory), no_dist=True)
    except Exception as error:
        causes = list(getattr(error, "failures", {}).values()) or [error]
        cause = causes[0][0] if isinstance(causes[0], tuple) else causes[0]
        if isinstance(cause, (KeyError, ValueError)):
            raise CheckpointError(f"it is of another model: {cause}") from error
        raise UnreadableFile(f"{directory.name} cannot be read: {cause}") from error


def tensors(directory: Path, found: Any, part: str) -> dict[str, SavedTensor]:
    """Return the whole tensors of a part of an index, `MODEL` or `OPTIMIZER`, by name."""
    prefix = f"{part}."
    places: dict[str, dict[Any, Any]] = defaultdict(dict)
    for key, info in found.storage_data.items():
        places[key.fqn][key.offset] = info
    return {
        name.removeprefix(prefix): SavedTensor(directory, name, entry, places[name])
        for name, entry in found.state_dict_metadata.items()
        if name.startswith(prefix) and hasattr(entry, "chunks")
    }


class SavedTensor:
    """A whole tensor, read when it is asked for."""

    def __init__(self, directory: Path, name: str, entry: Any, places: Mapping[Any, Any]) -> None:
        self._directory, self._name = directory, name
        self.shape, self.dtype = entry.size, entry.properties.dtype
        try:
            self._chunks = [(chunk, places[chunk.offsets]) for chunk in entry.chunks]
        except KeyError:
            raise CheckpointError(f"{directory} does not say where all of {name} lies") from None

    def contiguous(self) -> Any:
        """Return the tensor; raise `CheckpointError` if its parts do not make it up."""
        import torch

        whole = torch.empty(self.shape, dtype=self.dtype)
        count = 0
        for chunk, info in self._chunks:
            part = _load(self._directory, info)
            if part.shape != chunk.sizes or part.dtype != self.dtype:
                raise CheckpointError(f"a part of {self._name} is {part.dtype} {part.shape}")
            into = whole
            for axis, (begin, size) in enumerate(zip(chunk.offsets, chunk.sizes, strict=True)):
                into = into.narrow(axis, begin, size)
            into.copy_(part)
            count += part.numel()
        if count != whole.numel():
            raise CheckpointError(f"parts of {self._name} are missing")
        return whole


def _load(directory: Path, info: Any) -> Any:
    import torch

    with files.open_stream(directory / Path(info.relative_path).name) as stream:
        stream.seek(info.offset)
        data = io.BytesIO(stream.read(info.length))
    return torch.load(data, map_location="cpu", weights_only=True)

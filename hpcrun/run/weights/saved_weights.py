"""The weights in a checkpoint, whole, whatever divided them: ZeRO, a pipeline, tensor parallelism.

DeepSpeed's ``zero_to_fp32`` assembles what ZeRO has partitioned. It takes all files of a directory
for those of one model; here it is given the files of one part of a model at a time. Nothing of a
file is executed (`hpcrun.run.checkpoint.trust`).

Slices of tensor parallel ranks are merged by ``merge_tp_slices`` of ``ds_to_universal`` (0.19.8),
which reads and writes files; here it gets tensors and its first result is taken. What makes that
possible is private; tests/run/weights/test_saved_weights.py holds it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpcrun import shared_look
from hpcrun.errors import CheckpointError
from hpcrun.run.checkpoint import rank_state, shard_files, trust
from hpcrun.run.checkpoint.deepspeed_io import MODEL_STATES, UnreadableFile
from hpcrun.run.weights import averaged_weights
from hpcrun.text import listed, plural

_OPTIMIZER = re.compile(r"(?:bf16_)?zero_pp_rank_(\d+)_mp_rank_(\d+)_optim_states\.pt")
_LAYER = re.compile(r"layer_(\d+)-(?:model_(\d+)-)?model_states\.pt")
_EXPERT = re.compile(r"layer_.*_?expert_\d+_mp_rank_\d+_model_states\.pt")
_TIED = "tied_modules."
REPLICA = "replica-"
"""The prefix of files that an engine of ``session.replicas`` saves."""
_SHOWN = 3


@dataclass
class SavedWeights:
    """The whole tensors of a model, in the order of its ``state_dict``.

    Each has ``shape``, ``dtype`` and ``contiguous()``, which reads it.
    """

    tensors: dict[str, Any]
    tied: dict[str, str] = field(default_factory=dict)
    """Name -> the earlier name of the same parameter. Both are in ``tensors``."""
    buffers: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)
    """What a person should know of them."""
    info: Any = None
    """How tensors are divided between tensor parallel ranks, where they are."""


def collect(directory: Path, names: Iterable[str], *, masters: bool = True) -> SavedWeights:
    """Return the weights of the checkpoint in ``directory``, whose files have these ``names``.

    Of a model in 16 bits these are the optimizer's copies in fp32, where it saves such, unless not
    wanted (``masters``); ZeRO 3 saves nothing else. Raises CheckpointError if they cannot be put
    together.
    """
    names = [*names]
    if shard_files.INDEX in names:
        return _of_shards(directory)
    if replicas := [name for name in names if name.startswith(REPLICA)]:
        return _of_replicas(directory, replicas)
    found = _Files.of(directory, names)
    if found.layers:
        return _pipeline(found, masters)
    parts = [
        _part(found.models[rank], found.optimizers.get(rank, {}), masters=masters)
        for rank in sorted(found.models)
    ]
    if not parts:
        raise CheckpointError(
            f"{directory} has no file of DeepSpeed's with a model's weights (mp_rank_00_model_"
            "states.pt or the like)",
            hint="an engine with another writer than torch's (checkpoint.writer, datastates) saves "
            "in a form of its own, which is not read",
        )
    return parts[0] if len(parts) == 1 else _merge_parts(parts)


def _of_shards(directory: Path) -> SavedWeights:
    """Return what an engine of ``session.fully_shard`` saved."""
    try:
        found = shard_files.tensors(directory, shard_files.index(directory), shard_files.MODEL)
    except UnreadableFile as error:
        raise CheckpointError(f"{directory}: {error}") from None
    course = trust.load_tensors(directory / shard_files.COURSE)
    weights = SavedWeights(dict(found), buffers={*course["buffers"]})
    _put_shared(weights, course["tied"])
    return weights


def _of_replicas(directory: Path, names: Sequence[str]) -> SavedWeights:
    """Return the weights that an engine of ``session.replicas`` saved on its first rank."""
    saved = trust.load_tensors(directory / min(names))
    found = {name: one for name, one in saved["model"].items() if hasattr(one, "data_ptr")}
    weights = SavedWeights(found, _same_storage(found), {*saved.get("buffers", ())})
    if len(names) > 1:
        weights.notes.append("rank 0's: each rank has its own between two agreements")
    return weights


def put_averaged(weights: SavedWeights, directory: Path) -> None:
    """Put the averages of ``optimization.ema`` in the place of the weights, in fp32.

    Raises CheckpointError if the checkpoint has none.
    """
    path = directory / rank_state.name(0)
    saved = trust.load_tensors(path) if shared_look.is_there(path) else {}
    states = saved.get("states") if isinstance(saved, Mapping) else None
    found = (states or {}).get(averaged_weights.STATE) or {}
    averages = found.get(averaged_weights.WEIGHTS) or {}
    if not averages:
        raise CheckpointError(
            f"{directory} has no averaged weights",
            hint="set optimization.ema in the spec before the run trains; or leave out --averaged",
        )
    names = {name: weights.tied.get(name, name) for name in weights.tensors}
    lacking = [name for name in averages if name not in names.values()]
    if lacking:
        raise CheckpointError(f"{directory} has averages of other weights: {listed(lacking, 3)}")
    for name, own in names.items():
        if own in averages:
            weights.tensors[name] = averages[own]
    left = [name for name in weights.tensors if names[name] not in averages]
    weights.notes[:] = [f"the average of the weights over {found.get('steps', 0):,} updates"]
    if left:
        what = f"{plural(len(left), 'tensor')} ({listed(left, _SHOWN, rest=', …')})"
        weights.notes.append(f"{what} as the model has them: buffers and frozen parameters")


@dataclass
class _Files:
    """The files of a checkpoint: model parallel rank -> data parallel rank -> file."""

    models: dict[int, dict[int, Path]]
    optimizers: dict[int, dict[int, Path]]
    layers: dict[int, Path]

    @classmethod
    def of(cls, directory: Path, names: Iterable[str]) -> _Files:
        found = cls({}, {}, {})
        for name in sorted(names):
            if name.startswith("offloaded_tensors/"):
                raise CheckpointError(
                    f"{directory} has its weights in the files of an offload to NVMe, which are "
                    "not read",
                    hint="offload_optimizer.device: cpu saves them where they are read",
                )
            if _EXPERT.fullmatch(name):
                raise CheckpointError(
                    f"{directory} is of a mixture of experts, whose experts DeepSpeed saves in "
                    "files of their own; they are not merged, since no test shows them exact",
                    hint="have the program gather its experts and save them itself",
                )
            if match := _LAYER.fullmatch(name):
                if int(match[2] or 0):
                    raise CheckpointError(
                        f"{directory} is of a pipeline whose stages are divided between tensor "
                        "parallel ranks too, and nothing in it says how to put these together"
                    )
                found.layers[int(match[1])] = directory / name
            elif match := MODEL_STATES.fullmatch(name):
                found.models.setdefault(int(match[2]), {})[int(match[1] or 0)] = directory / name
            elif match := _OPTIMIZER.fullmatch(name):
                found.optimizers.setdefault(int(match[2]), {})[int(match[1])] = directory / name
        return found


def _part(
    models: Mapping[int, Path], optimizers: Mapping[int, Path], *, masters: bool
) -> SavedWeights:
    """Return what one model parallel rank holds, of all its data parallel ranks."""
    states = _states(models)
    own = states[0]
    module = {
        name: value for name, value in (own.get("module") or {}).items() if hasattr(value, "shape")
    }
    buffers = {name for name in own.get("buffer_names") or () if name in module}
    if any(path.name.startswith("zero_pp_rank_") for path in models.values()):
        whole = _masters(states, optimizers, partitioned=True)
        order = dict.fromkeys([*module, *whole])
        tensors = {
            name: module[name] if name in buffers else whole[name]
            for name in order
            if name in buffers or name in whole
        }
        tied = _shared(own)
    else:
        tensors, tied = module, {**_same_storage(module), **_shared(own)}
        if masters and optimizers and _in_16_bits(tensors):
            whole = _masters(states, optimizers, partitioned=False)
            tensors.update({name: whole[name] for name in tensors if name in whole})
    found = SavedWeights(tensors, {}, buffers, info=own.get("universal_checkpoint_info"))
    _put_shared(found, tied)
    if masters:
        _note_16_bits(found)
    return found


def _states(models: Mapping[int, Path]) -> list[Mapping[str, Any]]:
    """Load the files of one model parallel rank; raise CheckpointError if one is no such file."""
    states = []
    for rank in sorted(models):
        state = trust.load_tensors(models[rank])
        # What was not loaded, as it would execute something, stands there empty.
        if not isinstance(state, Mapping) or "module" not in state:
            raise CheckpointError(f"{models[rank]} cannot be read: it has no state of a model")
        states.append(state)
    return states


def _merge_parts(parts: Sequence[SavedWeights]) -> SavedWeights:
    """Return the whole of what tensor parallel ranks hold."""
    first = parts[0]
    info = _checked_info(first.info)
    # What is tied, the first rank alone has told DeepSpeed.
    own = [name for name in first.tensors if name not in first.tied]
    if any(not {*own} <= part.tensors.keys() <= first.tensors.keys() for part in parts):
        raise CheckpointError("the ranks that hold parts of the model have different tensors")
    whole: dict[str, Any] = {}
    for name in own:
        slices = [part.tensors[name] for part in parts]
        if name not in first.buffers:
            whole[name] = MergedTensor(info, name, slices)
        elif all(each.equal(slices[0]) for each in slices[1:]):
            whole[name] = slices[0]
        else:
            raise CheckpointError(f"the buffer {name} differs between ranks of one model")
    ordered = {name: whole[first.tied.get(name, name)] for name in first.tensors}
    return SavedWeights(ordered, first.tied, first.buffers, first.notes)


def _pipeline(found: _Files, masters: bool) -> SavedWeights:
    """Return the weights of a pipeline, named as in ``torch.nn.Sequential``: ``LAYER.name``."""
    tensors: dict[str, Any] = {}
    for number, path in sorted(found.layers.items()):
        for name, value in trust.load_tensors(path).items():
            if hasattr(value, "shape"):
                tensors[f"{number}.{name}"] = value
    weights = SavedWeights(tensors)
    if masters and _in_16_bits(tensors):
        whole: dict[str, Any] = {}
        for rank, models in sorted(found.models.items()):
            if rank in found.optimizers:
                whole |= _masters(_states(models), found.optimizers[rank], partitioned=False)
        tensors.update({name: whole[name] for name in tensors if name in whole})
        for name, master in whole.items():
            if name.startswith(_TIED):
                _put_tied(tensors, name.removeprefix(_TIED).partition(".")[2], master)
        _note_16_bits(weights)
    return weights


def _put_tied(tensors: dict[str, Any], own: str, master: Any) -> None:
    """Put the fp32 copy of a tied layer's parameter in each layer that has it rounded.

    A pipeline's files do not say which of its layers are tied: the values do.
    """
    for name, value in tensors.items():
        if (
            name.partition(".")[2] == own
            and value.dtype != master.dtype
            and value.shape == master.shape
            and value.equal(master.to(value.dtype))
        ):
            tensors[name] = master


def _masters(
    states: Sequence[Mapping[str, Any]], optimizers: Mapping[int, Path], *, partitioned: bool
) -> dict[str, Any]:
    """Return the parameters that the files of the optimizer hold in fp32, and the frozen ones."""
    from deepspeed.utils import zero_to_fp32

    if not all(state.get("param_shapes") for state in states):
        return {}
    parts = [
        zero_to_fp32.zero_model_state(
            buffers={},
            param_shapes=state["param_shapes"],
            shared_params=[],
            ds_version=state.get("ds_version"),
            frozen_param_shapes=state.get("frozen_param_shapes"),
            frozen_param_fragments=state.get("frozen_param_fragments"),
        )
        for state in states
    ]
    files = [str(optimizers[rank]) for rank in sorted(optimizers)]
    try:
        with trust.tensors_only():
            _, count, groups, paddings = zero_to_fp32.parse_optim_states(files, "the checkpoint")
        if partitioned:
            whole = zero_to_fp32._get_fp32_state_dict_from_zero3_checkpoint(
                count, groups, parts, False
            )
        else:
            whole = zero_to_fp32._get_fp32_state_dict_from_zero2_checkpoint(
                count, groups, parts, False, paddings
            )
    except (ValueError, KeyError, NotImplementedError) as error:
        raise CheckpointError(
            f"DeepSpeed cannot put the optimizer's parts together: {error}"
        ) from None
    return dict(whole)


def _put_shared(weights: SavedWeights, tied: Mapping[str, str]) -> None:
    """Add the further names of tensors, each with its first name."""
    for name, first in tied.items():
        if first in weights.tensors and name != first:
            weights.tensors[name] = weights.tensors[first]
            weights.tied[name] = first


def _shared(state: Mapping[str, Any]) -> dict[str, str]:
    found = state.get("shared_params")
    return dict(found) if isinstance(found, Mapping) else {}


def _same_storage(module: Mapping[str, Any]) -> dict[str, str]:
    """Return name -> first name of tensors that are one in memory, and so were saved once."""
    first: dict[Any, str] = {}
    tied = {}
    for name, value in module.items():
        if value.numel():
            place = value.untyped_storage().data_ptr(), value.storage_offset()
            key = (*place, value.dtype, tuple(value.shape), value.stride())
            if first.setdefault(key, name) != name:
                tied[name] = first[key]
    return tied


def _in_16_bits(tensors: Mapping[str, Any]) -> list[str]:
    return [
        name
        for name, value in tensors.items()
        if value.dtype.is_floating_point and value.dtype.itemsize == 2
    ]


def _note_16_bits(found: SavedWeights) -> None:
    """Say of which parameters no copy in fp32 was found."""
    left = _in_16_bits({n: value for n, value in found.tensors.items() if n not in found.buffers})
    if left:
        found.notes.append(
            f"{plural(len(left), 'parameter')} ({listed(left, _SHOWN, rest=', …')}) as the model "
            "has them, in 16 bits: frozen ones, and those of an optimizer that is not ZeRO's, have "
            "no copy in fp32"
        )


class MergedTensor:
    """A whole tensor that is merged when it is asked for."""

    def __init__(self, info: Mapping[str, Any], name: str, slices: Sequence[Any]) -> None:
        self._info, self._name, self._slices = info, name, slices
        self.shape = self.contiguous().shape
        self.dtype = slices[0].dtype

    def contiguous(self) -> Any:
        """Return the tensor; raise `CheckpointError` if the slices do not fit together."""
        return _merge(self._info, self._name, [each.contiguous() for each in self._slices])


class _Merged(Exception):
    """Ends DeepSpeed's function once it has what is wanted."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value


def _checked_info(info: Any) -> Mapping[str, Any]:
    """Return a checkpoint's record of how tensors were divided; raise CheckpointError without one.

    ``info`` is what DeepSpeed's AutoTP saves as ``universal_checkpoint_info``.
    """
    from deepspeed.checkpoint import ds_to_universal

    if not isinstance(info, Mapping) or not info:
        raise CheckpointError(
            "the model was divided between ranks by something other than DeepSpeed's AutoTP, and "
            "nothing in the checkpoint says how to put its tensors together",
            hint="have the program gather its weights and save them itself",
        )
    try:
        ds_to_universal._validate_autotp_conversion_support(info)
    except ValueError as error:
        raise CheckpointError(str(error)) from None
    return info


def _merge(info: Mapping[str, Any], name: str, slices: Sequence[Any]) -> Any:
    """Return the tensor that ``slices`` are, one a tensor parallel rank."""
    from deepspeed.checkpoint import ds_to_universal

    shapes = [each.shape for each in slices]
    try:
        with _on_tensors(ds_to_universal, slices):
            ds_to_universal.merge_tp_slices(info, "", "", len(slices), (name, shapes))
    except _Merged as merged:
        return merged.value
    except Exception as error:  # its asserts say what does not fit
        raise CheckpointError(
            f"the parts of {name} on {len(slices)} ranks, {', '.join(map(str, map(tuple, shapes)))}"
            f", cannot be put together: {type(error).__name__} {error}".rstrip()
        ) from None
    raise CheckpointError(f"DeepSpeed merged nothing for {name}")


@contextmanager
def _on_tensors(module: Any, slices: Sequence[Any]) -> Iterator[None]:
    read, write = module._merge_zero_shards, module._save_checkpoint

    def found(_base: str, state: str, *_: Any) -> Sequence[Any]:
        return slices if state == "fp32" else []

    def take(_path: str, content: Mapping[str, Any]) -> None:
        raise _Merged(content["param"])

    module._merge_zero_shards, module._save_checkpoint = found, take
    try:
        yield
    finally:
        module._merge_zero_shards, module._save_checkpoint = read, write

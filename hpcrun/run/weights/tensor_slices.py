"""Merging of the slices that tensor parallel ranks hold, by DeepSpeed's own rules.

``merge_tp_slices`` of ``deepspeed/checkpoint/ds_to_universal.py`` (0.19.8) reads and writes files;
here it gets tensors and its first result is taken. What makes that possible is private;
tests/run/weights/test_saved_weights.py holds it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from hpcrun.errors import CheckpointError


class MergedTensor:
    """A whole tensor that is merged when it is asked for."""

    def __init__(self, info: Mapping[str, Any], name: str, slices: Sequence[Any]) -> None:
        self._info, self._name, self._slices = info, name, slices
        self.shape = self.contiguous().shape
        self.dtype = slices[0].dtype

    def contiguous(self) -> Any:
        """Return the tensor; raise `CheckpointError` if the slices do not fit together."""
        return merge(self._info, self._name, [each.contiguous() for each in self._slices])


class _Merged(Exception):
    """Ends DeepSpeed's function once it has what is wanted."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value


def check(info: Any) -> Mapping[str, Any]:
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


def merge(info: Mapping[str, Any], name: str, slices: Sequence[Any]) -> Any:
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

"""The ``estimate`` block of a spec."""

from __future__ import annotations

from hpcrun.state.spec.spec_dataclass import spec_dataclass


@spec_dataclass
class Estimate:
    """What ``hpcrun estimate`` and the metric ``mfu`` are told of the model. Without it the
    function ``build_model(config)`` of a function's module is looked for, then a Hugging Face model
    in ``config``."""

    model: str | None = None
    """What makes the model: a function ``package.module:function`` or ``file.py:function`` that is
    called with ``config`` on the meta device and returns a ``torch.nn.Module``; or a Hugging Face
    name or directory."""

    parameters: str | None = None
    """The number of parameters instead, such as ``7.5B``; ``--parameters`` wins."""

    layers: int | None = None
    """Layers of a transformer. With ``hidden_size`` and ``sequence_length`` its activations are
    known by formula."""

    hidden_size: int | None = None
    """Width of a transformer."""

    heads: int | None = None
    """Attention heads of a transformer; only told."""

    vocabulary: int | None = None
    """Tokens that a language model knows."""

    sequence_length: int | None = None
    """Tokens of a sample; null for what the model or ``config`` says, and for no metric ``mfu``."""

    activation_checkpointing: bool | None = None
    """Whether the program computes activations again in backward; null for what
    ``config.gradient_checkpointing`` or ``deepspeed.pipeline.activation_checkpoint_interval``
    says."""

    total_steps: int | None = None
    """Optimizer steps of a run; null for what ``config`` or ``progress.total`` says."""

    timeout: str = "00:05:00"
    """How long following the model may take, in one of Slurm's forms."""

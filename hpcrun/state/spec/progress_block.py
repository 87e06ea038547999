"""The ``progress`` block of a spec."""

from __future__ import annotations

from typing import Literal

from hpcrun.state.spec.spec_dataclass import spec_dataclass


@spec_dataclass
class Progress:
    """How the steps, metrics and saves of a script or command are read from what it shows.
    Functions and programs that use ``hpcrun.session()`` need none of this."""

    source: Literal[
        "auto",
        "none",
        "metrics_file",
        "log",
        "trainer_state",
        "tensorboard",
        "lightning",
    ] = "auto"
    """Where steps and metrics are read: ``metrics_file`` (JSON lines with a ``step`` that the
    program appends to $HPCRUN_METRICS_FILE), ``log`` (``pattern``, else the bars of Keras or tqdm,
    in what rank 0 prints), ``trainer_state`` (of Hugging Face), ``tensorboard`` (event files),
    ``lightning`` (metrics.csv), ``none``. ``auto`` takes the first that shows steps; ``hpcrun why``
    says which, and docs/observing.md what follows."""

    directory: str | None = None
    """Where the program writes such files, if neither below its working directory nor below the
    run's: relative to the working directory, and may hold ``${hpcrun:directory}``."""

    pattern: str | None = None
    """A regular expression, in Python's notation, on the lines (1,000 characters) that rank 0
    prints: the group ``step`` is the number of finished steps, ``total`` that of all, groups of
    other names are metrics: ``'step (?P<step>\\d+)/(?P<total>\\d+).* loss (?P<loss>\\S+)'``. Where
    steps are counted anew in each epoch, ``epoch`` and ``epoch_total`` (its steps) tell how many
    there were before, and ``epochs`` how many epochs there will be. With ``epoch`` and without
    ``step`` epochs are the steps. Where lines have no number, a group ``one_step`` counts them, on
    from the save that the program resumes from. A pattern that takes half a second three times is
    not used any more."""

    saved: str | list[str] | None = None
    """Globs of the program's own saves, absolute or relative to its working directory. A save
    counts once it has not changed for five seconds; its step is that of a ``trainer_state.json`` in
    it, of the file ``latest``, or a number in its name, else the last one known. Null for
    ``recovery.resume.when``, or without it for ``checkpoint-*``, ``*.ckpt``, ``latest``,
    ``ckpt*.pt``, ``checkpoint*.pt*``."""

    total: int | None = None
    """How many steps there will be; null for what the source says."""

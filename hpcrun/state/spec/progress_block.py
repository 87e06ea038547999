"""The ``progress`` block of a spec."""

from __future__ import annotations

from typing import Literal

from hpcrun.state.spec.spec_dataclass import spec_dataclass


@spec_dataclass
class Progress:
    """How the steps, metrics and saves of a script or command are read from what it shows, without
    changing it. Functions and programs that use ``hpcrun.session()`` need none of this."""

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
    in what rank 0 prints), ``trainer_state`` (what the Trainer of Hugging Face prints and saves),
    ``tensorboard`` (event files), ``lightning`` (the CSVLogger's metrics.csv), ``none``. ``auto``
    takes the first of them that shows steps, what ``framework`` is known for before the others,
    bars last; ``hpcrun why`` says which. All attempts of a run count the same: with a ``pattern``
    what it finds, else what the first source counted that had steps."""

    directory: str | None = None
    """Where the program writes such files, if it is neither below its working directory nor below
    the run's: a path, relative to the working directory, that may hold ``${hpcrun:directory}``."""

    pattern: str | None = None
    """A regular expression, in Python's notation, that finds a step in a line that rank 0 prints:
    the group ``step`` is the number of finished steps, ``total`` that of all, groups of other names
    are metrics. Where a program counts steps anew in each epoch, ``epoch`` and ``epoch_total`` (its
    steps) tell how many there were before, and ``epochs`` (their number) how many there will be.
    With ``epoch`` and without ``step`` epochs are the steps: a line ends one, and ``total`` is
    their number. The first epoch that a run shows tells whether they begin with 0 or with 1. Where
    lines have no number, a group ``one_step`` in place of ``step`` counts them, on from the save
    that the program resumes from.
    ``'step (?P<step>\\d+)/(?P<total>\\d+).* loss (?P<loss>\\S+)'`` The first 1,000 characters
    of a line are searched; one that takes half a second is left out, and a pattern that does so
    three times is not used any more. ``hpcrun why`` tells that, and of a pattern that finds
    nothing the line that comes nearest."""

    saved: str | list[str] | None = None
    """Globs of the program's own saves, files or directories, absolute or relative to its working
    directory; ``**`` stands for any directories. A save counts once it has not changed for five
    seconds. Its step is that of a ``trainer_state.json`` in it, of the file ``latest``, or a number
    in its name; else the last one known as it was written. Null for ``recovery.resume.when``, or
    without it for common names: ``checkpoint-*``, ``*.ckpt``, ``latest``, ``ckpt*.pt``,
    ``checkpoint*.pt*``."""

    total: int | None = None
    """How many steps there will be, for the time that is left; null for what the source says."""

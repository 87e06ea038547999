"""The errors that hpcrun raises on purpose, and their exit codes.

::

    HpcrunError                exit 1
    ├── UsageError             exit 2   the input is wrong, or nothing matches
    │   ├── SpecError          exit 2   one or more problems in a spec, all of them at once
    │   └── BrokenFile         exit 2   a file of hpcrun's on disk is not what hpcrun writes
    ├── ClusterRefused         exit 3   the cluster answered, and said no
    ├── ClusterUnreachable     exit 4   the cluster did not answer; the same command may work later
    ├── Interrupted            exit 130 by Ctrl-C, in the middle of something that it reports
    ├── CheckpointError        exit 1   a checkpoint cannot be written or read
    ├── NonFiniteLossError     exit 1   the loss is not a number any more
    ├── LossSpikeError         exit 1   the loss or the gradient norm is far above the usual
    └── ReplicasDifferError    exit 1   ranks that hold the same weights do not any more

Workers end with ``EXIT_SAVED`` (75) when they saved and want to be started again.
"""

from __future__ import annotations

from collections.abc import Sequence

from hpcrun.shared_dataclass import dataclass
from hpcrun.text import entry, one_line

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_REFUSED = 3
EXIT_UNREACHABLE = 4
EXIT_BUG = 70
EXIT_SAVED = 75
EXIT_INTERRUPTED = 130


class HpcrunError(Exception):
    """The base of all of hpcrun's own errors.

    ``message`` names the key or file, what was found and what is accepted; ``hint`` is the next
    step for the person who reads it, shown after a blank line as ``hint: …``.
    """

    exit_code = EXIT_FAILED

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        message = entry(self.message)
        return f"{message}\n\nhint: {entry(self.hint)}" if self.hint else message


class UsageError(HpcrunError):
    """The command's input is wrong, or nothing matches it."""

    exit_code = EXIT_USAGE


@dataclass(frozen=True)
class Problem:
    """One mistake in a spec."""

    file: str
    """The file (as the user named it) or ``"command line"``."""
    key: str
    """The full dotted key, or ``""`` for the file as a whole."""
    message: str
    """The value that was found, and the values that are accepted."""
    hint: str | None = None
    """The fix, such as ``did you mean 'nodes'?``."""
    line: int | None = None
    """1-based line in the file, where known."""

    def __str__(self) -> str:
        place = self.file if self.line is None else f"{self.file}:{self.line}"
        key = f" {self.key}:" if self.key else ""
        hint = f" ({self.hint})" if self.hint else ""
        return one_line(f"{place}:{key} {self.message}{hint}")


class SpecError(UsageError):
    """All problems of a spec, at least one, in the order of the file."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))

    def __str__(self) -> str:
        return self.message


_MEND = "what is wrong there was not written by hpcrun: mend the file, or move its run away"


class BrokenFile(UsageError):
    """A file of hpcrun's on disk cannot be read, or does not hold what hpcrun writes there.

    The message names the file, and the line where there is one.
    """

    @classmethod
    def of(
        cls, path: object, error: OSError | ValueError | str, line: int | None = None
    ) -> BrokenFile:
        """Return the error of a path: the reason is in words, or one of the system's."""
        reason = (isinstance(error, OSError) and error.strerror) or str(error)
        place = f"{path}:{line}" if line is not None else str(path)
        return cls(f"{place}: {reason}", hint=_MEND)


class ClusterRefused(HpcrunError):
    """Slurm answered and refused the request."""

    exit_code = EXIT_REFUSED


class ClusterUnreachable(HpcrunError):
    """Slurm does not answer."""

    exit_code = EXIT_UNREACHABLE


class Interrupted(HpcrunError):
    """Ctrl-C ended a command that had done a part of its work."""

    exit_code = EXIT_INTERRUPTED


class CheckpointError(HpcrunError):
    """A checkpoint could not be written, or none of those on disk can be restored."""


class NonFiniteLossError(HpcrunError):
    """The loss was infinite or not a number for several steps in a row."""


class LossSpikeError(HpcrunError):
    """The loss or the gradient norm was far above those of the steps before."""


class ReplicasDifferError(HpcrunError):
    """Ranks that hold the same weights, or the same state of the optimizer, differ."""

"""What the kernel says of a process."""

from __future__ import annotations

from pathlib import Path


def stat(process: Path) -> list[str]:
    """The fields of ``/proc/PID/stat``, or of a thread's, from the state on.

    Raises
    ------
    OSError
        It is gone.
    """
    text = (process / "stat").read_text(errors="replace")
    # The name, in parentheses, may hold anything, parentheses and spaces too.
    return text[text.rindex(")") + 2 :].split()

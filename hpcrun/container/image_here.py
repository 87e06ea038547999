"""The image of a container on the machine where a run is submitted, before the queue."""

from __future__ import annotations

import contextlib
import os
import shlex
import stat
from difflib import get_close_matches
from pathlib import Path

from hpcrun import mounts, shared_look
from hpcrun.container import runtimes
from hpcrun.errors import UsageError
from hpcrun.state.environment.environment_block import Container

KEY = "environment.container.image"


def absent(container: Container, elsewhere: str | None, *, made: bool = False) -> str | None:
    """Return that the image is not here, though the nodes may have it; None if it is here.

    Raises UsageError if no rank could use it: it is not there and the ranks run here or see the
    same storage, it cannot be read, or it is none of the runtime's. A name in a registry is not
    looked at. ``elsewhere`` says who may have it, in words; None where the ranks run here.
    ``made``: they make it before the ranks start.
    """
    image = container.image
    if not image or not runtimes.is_path(image):
        return None
    try:
        # Another host may have made it a moment ago.
        is_directory = stat.S_ISDIR(shared_look.status(Path(image)).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return _absent(Path(image), elsewhere, made=made)
    except OSError as error:
        raise UsageError(
            f"{KEY}: {image} cannot be looked at: {error.strerror}",
            hint=f"see `namei -l {shlex.quote(image)}`, and correct the path",
        ) from None
    if not os.access(image, os.R_OK | (os.X_OK if is_directory else 0)):
        raise UsageError(
            f"{KEY}: {image} cannot be read by you",
            hint=f"`ls -ld {shlex.quote(image)}` tells whose it is; they can let you: "
            f"chmod a+r{'x' if is_directory else ''}",
        )
    if runtimes.of(container).needs_directory and not is_directory:
        raise UsageError(
            f"{KEY}: {image} is no directory, as {container.runtime} needs",
            hint="unpack it, or start it with charliecloud or apptainer",
        )
    return None


def _absent(image: Path, elsewhere: str | None, *, made: bool) -> str:
    found = f"{KEY}: there is no {image} on {os.uname().nodename}"
    names: list[str] = []
    with contextlib.suppress(OSError):
        if image.is_symlink():
            found += f" (it is a link to {image.readlink()})"
        names = [one.name for one in image.parent.iterdir()]
    near = get_close_matches(image.name, names, n=1)
    meant = f"did you mean {image.parent / near[0]}?" if near else ""
    if made:
        return f"{found}, and the ranks do not start unless {elsewhere} makes it"
    mount = mounts.of(os.path.realpath(image), mounts.read())
    hint = f"{meant or 'correct the path'}; or put the image there"
    if elsewhere is None:
        raise UsageError(f"{found}, where the ranks run", hint=hint)
    if mount is not None and mount.is_remote and image.parent.is_dir():
        storage = f"{mount.point}, which nodes see as it is here"
        raise UsageError(f"{found}; it would be in {storage} ({mount.kind})", hint=hint)
    return (
        f"{found}; ranks start only where their node has it, which "
        f"`srun ls -ld {shlex.quote(str(image))}` tells; else put it on storage that all nodes see"
        + (f" ({meant})" if meant else "")
    )

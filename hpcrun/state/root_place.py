"""The root of experiments: its default, the default of before, and checkouts of hpcrun as roots."""

from __future__ import annotations

import os
import re
from pathlib import Path

from hpcrun.errors import UsageError
from hpcrun.host import expand_home
from hpcrun.state import layout
from hpcrun.text import Say, listed, plural

NAME = "hpcrun-runs"
"""The default root in HOME, which jobs share. `git clone` of hpcrun makes another name there."""
_EARLIER = "hpcrun"


def default_root() -> Path:
    """Return HPCRUN_ROOT, or ``~/hpcrun-runs``."""
    return expand_home(os.environ.get("HPCRUN_ROOT") or f"~/{NAME}").absolute()


def earlier_experiments(root: Path) -> list[str]:
    """Return the names of experiments in ``~/hpcrun``, once the default root.

    Without names if ``root`` is not today's default: somebody chose it.
    """
    if os.path.realpath(root) != os.path.realpath(expand_home(f"~/{NAME}")):
        return []
    return [one.name for one in layout.experiments(expand_home(f"~/{_EARLIER}"))]


def tell_of_earlier(root: Path, say: Say) -> None:
    """Say that experiments in the earlier default root are not seen, and what to type."""
    if names := earlier_experiments(root):
        say(
            f"~/{_EARLIER}, the default root of earlier versions, holds "
            f"{plural(len(names), 'experiment')} ({listed(names, 3)}); the default is ~/{NAME} "
            f"now, and this command does not see them\n"
            f"to go on with them: export HPCRUN_ROOT=~/{_EARLIER}   (or --root ~/{_EARLIER})"
        )


def check_not_earlier(root: Path, name: str) -> None:
    """Raise UsageError if a submission would begin anew what lies in the earlier default root."""
    if name in earlier_experiments(root) and not layout.experiment(root, name).exists:
        raise UsageError(
            f"~/{_EARLIER}, the default root of earlier versions, holds the experiment {name}: in "
            f"~/{NAME}, the default now, all of its runs would begin anew",
            hint=f"go on with it by --root ~/{_EARLIER} or `export HPCRUN_ROOT=~/{_EARLIER}`; to "
            f"begin anew, give it a name of its own: name={name}-2",
        )


def check_no_checkout(root: Path, say: Say) -> None:
    """Raise UsageError if the root is a checkout of hpcrun itself; say that it lies inside one.

    Experiments would stand among hpcrun's own directories, and go when the checkout goes. Where
    they are there already, and where git ignores a directory of their own, they may stay.
    """
    places = (root, *root.parents)
    own = re.compile(r'^name = "hpcrun"$', re.MULTILINE)
    checkout = next((one for one in places if own.search(_text(one / "pyproject.toml"))), None)
    if checkout is None:
        return
    if root == checkout and not layout.experiments(root):
        raise UsageError(
            f"the root {root} is a checkout of hpcrun, with which its experiments would go",
            hint=f"choose another: --root ~/{NAME}, HPCRUN_ROOT, or `root:` of the profile",
        )
    inside = root.relative_to(checkout).parts[:1]
    if not (inside and f"{inside[0]}/" in _text(checkout / ".gitignore").split()):
        say(
            f"the root {root} lies in a checkout of hpcrun: whoever removes {checkout} removes "
            f"its experiments; --root ~/{NAME} or HPCRUN_ROOT is another place"
        )


def _text(path: Path) -> str:
    """Return the text of a file; empty if it cannot be read."""
    try:
        return path.read_text()
    except (OSError, ValueError):
        return ""

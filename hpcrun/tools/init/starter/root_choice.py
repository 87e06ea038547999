"""The root of experiments: the storage with room that the nodes share. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hpcrun.site.shared_storage import StoragePlace
from hpcrun.state.root_place import NAME
from hpcrun.text import size

_LEAST = 1_000_000_000
HOME = f"${{oc.env:HOME}}/{NAME}"


@dataclass(frozen=True)
class RootChoice:
    """The root, and why."""

    root: str
    """As the profile has it."""
    why: str
    path: str
    """The same as a path."""
    is_default: bool
    """It is where commands look that know no profile."""
    doubt: str = ""
    """What is to be known before it is used; empty for nothing."""


def default_root(environ: Mapping[str, str]) -> str:
    """Return the root of commands that know no profile."""
    return environ.get("HPCRUN_ROOT") or f"{environ.get('HOME', '')}/{NAME}"


def choose(
    places: Sequence[StoragePlace], environ: Mapping[str, str], typed: str | None = None
) -> RootChoice:
    """Return what was typed, HPCRUN_ROOT, else the first shared place with room, else home.

    Places are in the order of `hpcrun.site.shared_storage.read`.
    """
    home = environ.get("HOME", "")
    if typed:
        return RootChoice(typed, "--root", typed, is_default=typed == default_root(environ))
    if named := environ.get("HPCRUN_ROOT"):
        return RootChoice(named, "HPCRUN_ROOT of this shell", named, is_default=True)
    for one in places:
        if "${" in one.path:
            continue
        if one.is_usable and one.is_shared and one.free >= _LEAST and one.source != "$HOME":
            path = f"{one.path.rstrip('/')}/{NAME}"
            told = f"{one.source}: {one.kind}, which nodes share, {size(one.free)} free"
            scratch = one.source.lower().endswith("scratch")
            doubt = f"{one.source} may be purged of old files: ask your site" if scratch else ""
            return RootChoice(
                path, told, path, is_default=path == default_root(environ), doubt=doubt
            )
    own = next((one for one in places if one.source == "$HOME"), None)
    why, doubt = "$HOME", ""
    if own is None or own.problem:
        doubt = f"$HOME {own.problem if own else 'is not set'}: choose another root with --root DIR"
    elif own.is_shared:
        why = f"$HOME: {own.kind}, which nodes share, {size(own.free)} free; quotas are not seen"
    else:
        kind = own.kind or "of a type not known"
        why = f"$HOME: {kind}, {size(own.free)} free; whether nodes share it is not known"
        doubt = (
            f"{own.path} is on {own.kind or 'a file system of no known type'}, which does not tell "
            "whether the nodes share it: if they do not, choose another root with --root DIR"
        )
    return RootChoice(HOME, why, f"{home}/{NAME}", is_default=True, doubt=doubt)

"""The names that the site had when Slurm was asked last, for completion, which asks nobody."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcrun.host import user_cache
from hpcrun.state import files

if TYPE_CHECKING:
    from hpcrun.site.slurm_site import SlurmSite

_MOST_NAMES, _MOST_BYTES = 500, 1 << 18


def keep(site: SlurmSite) -> None:
    """Write the names of a site to the user's cache; ignore errors, since it is optional."""
    associations = site.associations or ()
    names: Mapping[str, Iterable[str]] = {
        "resources.partition": (
            name
            for name, one in site.partitions.items()
            if not one.is_hidden and not one.is_root_only
        ),
        "resources.account": (one.account for one in associations),
        "resources.qos": (name for one in associations for name in one.qos),
        "resources.reservation": site.reservations,
        "resources.constraint": (name for one in site.nodes.values() for name in one.features),
        "resources.gpu_type": (name for one in site.nodes.values() for name in one.gpus if name),
    }
    data = {key: sorted({*found})[:_MOST_NAMES] for key, found in names.items()}
    path = _path()
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write_bytes(path, json.dumps({"reach": _reach(), "names": data}).encode())


def names_of(key: str) -> list[str]:
    """Return the names that a key such as ``resources.partition`` may have; empty if unknown."""
    try:
        data: Any = files.read_json(_path(), _MOST_BYTES)
        found = data["names"][key] if data["reach"] == _reach() else []
        return [name for name in found if isinstance(name, str)]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _path() -> Path:
    return user_cache() / "site-names.json"


def _reach() -> list[str]:
    """Return what decides which cluster this host's commands reach."""
    return [os.uname().nodename, os.environ.get("SLURM_CONF", "")]

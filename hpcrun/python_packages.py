"""The packages of a Python, as its import path has them, and how two such lists differ.

The source of `installed` is also run by Pythons that cannot import hpcrun, so it stands by itself.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence

from hpcrun import ask_python

# More than any environment has; names are a file's, and may be another user's.
MOST, MOST_DIFFERENT = 20_000, 200
# Seconds in which another Python answers.
_ANSWER = 120.0


def installed(paths: Iterable[str]) -> dict[str, str]:
    """Return name -> version of a Python and its packages, the first of each on the path.

    A package that was installed from a repository has its commit beside the version.
    """
    import json
    import sys
    from pathlib import Path

    found = {"python": ".".join(map(str, sys.version_info[:3]))}
    for path in map(Path, paths):
        try:
            entries = sorted(path.iterdir())
        except OSError:
            continue
        for entry in entries:
            name, dash, version = entry.stem.rpartition("-")
            name = name.replace("_", "-").lower()
            if not dash or entry.suffix not in (".dist-info", ".egg-info") or name in found:
                continue
            found[name] = version
            try:
                origin = json.loads((entry / "direct_url.json").read_bytes())
                found[name] += " " + origin["vcs_info"]["commit_id"][:12]
            except (OSError, ValueError, KeyError, TypeError):
                continue
    return found


SOURCE = f"from __future__ import annotations\n{inspect.getsource(installed)}"


def ask(python: Sequence[str]) -> dict[str, str] | None:
    """Return the packages of another Python; None if it does not tell."""
    words = ask_python.program(f"{SOURCE}\nimport sys\nanswer = installed(sys.path)")
    try:
        return read(ask_python.ask([*python, *words], timeout=_ANSWER, cwd=None).data)
    except OSError:
        return None


def read(data: object) -> dict[str, str] | None:
    """Return packages that a file holds; None if it holds none, or something else."""
    if not isinstance(data, dict) or not 0 < len(data) <= MOST:
        return None
    if not all(isinstance(each, str) for pair in data.items() for each in pair):
        return None
    return data


def difference(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return what has changed, in words: ``numpy 2.0.1 -> 2.1.0``, ``einops 0.8.0 is gone``."""
    found = []
    for name in sorted({*before, *now}):
        old, new = before.get(name), now.get(name)
        if old == new:
            continue
        if old is None:
            found.append(f"{name} {new} is new")
        elif new is None:
            found.append(f"{name} {old} is gone")
        else:
            found.append(f"{name} {old} -> {new}")
    rest = len(found) - MOST_DIFFERENT
    return [*found[:MOST_DIFFERENT], *([f"and {rest:,} more"] if rest > 0 else [])]

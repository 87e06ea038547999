"""The place on this node of a path that was staged."""

from __future__ import annotations

import os
from pathlib import Path

from hpcrun.state import files
from hpcrun.state.node_layout import NodePaths


def local(staged: Path, path: Path) -> Path:
    """Return where a path is found on this node: as it is, unless it was staged.

    ``staged`` is the node's directory of what was; links and relative paths are followed.
    """
    sources: dict[str, str] = files.read_json(NodePaths(staged.parent).staged_list)
    for wanted in dict.fromkeys((os.path.abspath(path), os.path.realpath(path))):  # noqa: PTH100
        for source, name in sources.items():
            for own in dict.fromkeys((source, os.path.realpath(source))):
                if wanted == own:
                    return staged / name
                if wanted.startswith(f"{own}/"):
                    return staged / name / wanted[len(own) + 1 :]
    return path

"""Tools: one folder a command, or family of commands, that the core does not need.

A folder registers its commands as ``COMMANDS`` in its ``__init__``, with the lines of ``--help``,
the examples and the names that people type; `hpcrun.cli.commands` looks for these folders, so that
a tool whose folder is taken away is gone, and nothing else. A tool may import the core, and no
other tool; the core imports none.

- `doctor`: promises of a cluster, and tests of its nodes. `init`: a profile and a project, also of
  an sbatch script. `estimate`: memory, time and money. `perf`: ``tune``, ``scaling``, ``profile``.
- `top`: the live screen. `report`: the HTML page. `search`: trials at a glance. `export`: runs as
  an archive. `weights`: for other programs.
- `drill`: faults on purpose. `completion`: scripts for shells, and the answers to TAB. `remote`:
  any command on a login node.

To add a tool: a folder with ``COMMANDS`` in its ``__init__``, a module with a click command, its
tests in ``tests/tools``, and ``make docs``. What of it runs on compute nodes is in its room
``on_nodes``.
"""

from __future__ import annotations

import importlib.util


def has(tool: str) -> bool:
    """Check whether a tool is there, for one that does more beside it."""
    return importlib.util.find_spec(f"hpcrun.tools.{tool}") is not None

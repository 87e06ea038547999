"""Names in a frozen environment, the same wherever it is unpacked."""

from __future__ import annotations

PYTHON = "bin/python"
# {"moved": {directory of PYTHONPATH at submission: its copy's path in the environment}}
RECORD = "hpcrun-environment.json"
# Beside a copy on a node, once that is whole.
COMPLETE = "complete"

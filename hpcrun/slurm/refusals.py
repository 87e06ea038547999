"""Why Slurm refuses a job, by its words, and where to look then."""

from __future__ import annotations

import re

LIMITS = "your limits: `sacctmgr show associations user=$USER`"
PARTITION = "resources.partition"
_PLACES = (
    (r"violates|policy|submit(?: |\w*)limit|submission failed: access", LIMITS),
    (r"invalid partition", PARTITION),
    (r"invalid account", "resources.account; `sacctmgr show associations user=$USER` lists yours"),
    (r"invalid qos", "resources.qos; `sacctmgr show associations user=$USER` lists yours"),
    (r"time limit", "resources.time; `sinfo -o '%P %l'` lists each partition's longest"),
    (
        r"node configuration is not available|node count|more processors|cpu count|memory",
        "resources.nodes, gpus_per_node, cpus_per_task and memory; `sinfo -o '%P %D %c %m %G'` "
        "lists what the nodes have",
    ),
    (
        r"gres",
        "resources.gpus_per_node; `sinfo -o '%P %G'` lists each partition's GPUs; where the nodes "
        "have others, resources.gpu_request and node_has_gpus of the cluster profile",
    ),
    (r"feature", "resources.constraint; `sinfo -o '%P %f'` lists the features"),
    (r"reservation", "resources.reservation; `scontrol show reservation` lists them"),
    (r"array", "the sweep's size; `scontrol show config` tells MaxArraySize"),
)


def where_to_look(message: str) -> str | None:
    """Return the keys that a refusal is about, and what lists their values; None if unknown."""
    for pattern, place in _PLACES:
        if re.search(pattern, message, re.IGNORECASE):
            return place
    return None

"""A node's InfiniBand and RoCE adapters: which carry the gradients, and what is wrong with them.

Reading order: `adapters` (what ``/sys/class/infiniband`` says), `compute_ports` (the ports for
NCCL), `link_check` (the verdict on a node, and on nodes that differ).

Shown on trees that are made after the kernel's documentation (tests/support/sysfs_tree.py), not on
InfiniBand.

To add a verdict: `link_check.findings` for one node, `link_check.compare` for several.
"""

"""Tests of nodes as a job: ``hpcrun doctor --nodes``.

Reading order: `conductor` (the batch step: asks, collects, and pairs the nodes that measure each
other), `examiner` (one a node: measures), `node_facts` (what a node tells of itself, its GPUs by
nvidia-smi), `tensor_test` (a matrix product and an all-reduce by torch). What the measurements mean
is judged on the login node, in `hpcrun.tools.doctor`.

To measure something more: a question in `examiner`, asked in `conductor.Conductor.conduct`.
"""

"""Tests of nodes as a job: ``hpcrun doctor --nodes``.

Reading order: `conductor` (the batch step: asks and collects), `examiner` (one a node: measures),
`node_facts` (what a node tells of itself), `gpu_query` (its GPUs by nvidia-smi), `link_rounds`
(has nodes measure each other), `tensor_ranks` and `tensor_test` (a matrix product and an
all-reduce by torch), `tensor_pairs` (the same between two nodes). What the measurements mean is
judged on the login node, in `hpcrun.tools.doctor`.

To measure something more: a question in `examiner`, asked in `conductor.Conductor.conduct`.
"""

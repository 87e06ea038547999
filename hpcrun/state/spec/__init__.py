"""The spec as dataclasses, which own its names, types, defaults and documentation.

In reading order: `experiment` (a spec), `run_blocks` (blocks that nodes read), `notify_block`,
`parallel_block`, `recovery_block` and `sweep_block`, `cluster_profile` (a site),
`executors` (how it starts runs), `spec_dataclass` (their decorator), `blocks` (typed views of a
frozen spec), `profiling` (the block that `hpcrun profile` adds). The ``environment`` block is in
`hpcrun.state.environment`.

To add a key: a field with its documentation here, a check in `hpcrun.compile.spec.checks` if it has
limits, and ``python -m hpcrun.compile.spec.reference``, which writes docs/spec.md. It is read as
``run.recovery.KEY``; if it switches something on, older plans go without (`blocks._ABSENT`).
"""

"""The fastest configuration of a spec, found by trials: ``hpcrun tune`` and ``scaling``.

In reading order: `search_space` (the keys and values to try), `trial_candidates` (each combination
compiled, pruned by the compiler and by `hpcrun.tools.estimate`, and put in order), `trial_run` (the run
that tries them: here, in this allocation or as a job), `tuning` (all of it, and the result),
`tuned_spec` (the spec to submit), `written_file` (what others wrote is kept). `scaling` measures
one device against many, and `scaling_page` draws it. What runs on the nodes is `hpcrun.tools.perf.on_nodes`;
a trial's record is `hpcrun.tools.perf.on_nodes`.

To try another key by default, add it in `search_space.usual`.
"""

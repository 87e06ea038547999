"""Freeze the environment of the job's Python at submission, once for each content.

In reading order: `environment_files` (asks the Python where its packages lie, and lists what is
frozen of them), `lock_build` (builds them from a lock, by uv or pip), `environment_freeze` (all of
that, for `hpcrun submit`, and the archive, which one process at a time writes).

To freeze something else of an environment: a source of `environment_files.EnvironmentFiles`.
"""

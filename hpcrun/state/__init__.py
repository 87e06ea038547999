"""All that is on disk, each file with one owner; standard library only, as on compute nodes.

In reading order: `layout` and `node_layout` (every name), `root_place` (where experiments live if
nothing says so, and where they should not), `files` (how lines and whole files are
written, and read where a crash tore a line), `spec` and `environment` (the spec's dataclasses),
`plan`, `role_plan`, `plan_file` and `patched` (the frozen plan), `chosen_point` (values that a run
of a search gets later), `submission_facts`, `journal`, `job_changes` and `history` (what was
submitted, and changed in the queue), `ledger` (a run's attempts), `session_log` and `metrics_file`
(an attempt's events and metrics), `manifest` and `init_from` (checkpoints),
`permissions` (umask, group, owners), `annotation_log` (tags and notes), `suspect_nodes` (whose
hardware failed a job).

To add a file: its name to `layout`, its format to a module that writes and reads it; nobody else
parses it.
"""

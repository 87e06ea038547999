"""Copies of data on the nodes' own disks, made before the ranks of an attempt start.

In reading order: `copied_files` (the files of one source, copied and compared), `shared_copy` (a
copy that all jobs of a user on one node share, and who removes it), `environment_copy` (one of a
frozen environment, which is unpacked for it), `node_staging` (the agent's
part: all sources of its run, in a thread), `staging_reports` (the supervisor's part: what the nodes
say), `staged_path` (a rank's: where a path is found). What is to be
staged is found by `hpcrun.state.staged_sources`.

To tell something else of a node's copies: a field of `node_staging.StagingReport`, checked in
`staging_reports` and recorded as the ledger's event ``staged``.
"""

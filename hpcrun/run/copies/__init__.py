"""Copies of data on the nodes' own disks, made before the ranks of an attempt start.

In reading order: `copied_files` (the files of one source, copied and compared), `shared_copy` (a
copy that all jobs of a user on one node share, and who removes it), `environment_copy` (one of a
frozen environment, which is unpacked for it), `sent_code` (frozen code that was sent to the node),
`node_copies` (the agent's part: all sources of its run, in a thread), `copy_reports` (the
supervisor's part: what the nodes say). Features say what else is copied, by
`hpcrun.feature.Feature.copies`.

To tell something else of a node's copies: a field of `node_copies.NodeCopyReport`, checked in
`copy_reports` and recorded as the ledger's event ``staged``.
"""

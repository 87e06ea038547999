"""The record of suspect nodes: this user's own, for hours, of hardware alone.

`suspect_nodes` is the record, `suspect_choice` which of them a submission leaves out. Who puts
nodes there is decided in `hpcrun.policy.recovery`.

To have something else make a node suspect: `suspect_nodes.SuspectNodes.record`, where it is seen.
"""

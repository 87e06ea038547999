"""The record of suspect nodes: this user's own, for hours, of hardware alone.

One module: `suspect_nodes`. Who puts nodes there is decided in `hpcrun.policy.recovery`, which of
them a submission leaves out in `hpcrun.policy.suspect_choice`.

To have something else make a node suspect: `suspect_nodes.SuspectNodes.record`, where it is seen.
"""

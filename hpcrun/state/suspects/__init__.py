"""The record of suspect nodes, which users of a site share where the cluster profile names one.

One module: `suspect_nodes` (the files, one an author; what they say is bounded and another user's).
Which of its nodes a submission leaves out is decided in `hpcrun.policy.suspect_choice`.

To add something that is known of a suspect node: a field of `suspect_nodes.SuspectEntry`, and its
kind in ``_KINDS``.
"""

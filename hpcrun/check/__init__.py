"""A compiled plan against the cluster as it is now, for `hpcrun check` and `hpcrun submit`.

In reading order: `finding` (one thing that is wrong, and where), `job_request` (what one sbatch of
a plan asks for, read from its script), then the judges, which are pure: `partition_checks` (whether
it may be used), `node_checks` (whether the nodes are there), `account_checks` (accounts, QOS and
their limits), `queue_checks` (arrays, reservations, licences); `file_checks` (weights, Pythons and
room that would fail the runs) and `path_checks` (paths that nodes would not find); `check` asks,
judges and reports.

To check something more: a function that yields findings from a `JobRequest` and the site, called in
`check.judge`; a spec that is wrong in that way alone in ``tests/cluster/test_check.py``. In doubt a
check says nothing, or warns: a right spec is never refused.
"""

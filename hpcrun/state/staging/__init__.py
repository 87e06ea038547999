"""Staging: what of shared storage a run is to find on its nodes' own disks.

In reading order: `staged_sources` finds what the paths of ``staging.paths`` name, for the checks
before the queue and for the nodes, and lists the files of each; `staging_record` describes what an
attempt's nodes came to.

To record something else of it: a kind in `staging_record.KINDS`, and a field of
`hpcrun.run.staging.staging_reports`.
"""

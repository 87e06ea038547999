"""The working directory of a run's ranks: what a program writes is on shared storage, and stays.

``RUN/work`` mirrors the root of the frozen code. A rank's working directory lies in it, so that
what a program writes to a relative path is on shared storage at once. What it reads is found by
links to the node's copy of the code, which are there while an attempt runs. What it writes into
that copy (beside its own file, say) is copied to shared storage.

Reading order: `work_directory` (the supervisor's side, before and after an attempt), `node_work`
(an agent's, with copies of what was written into its copy of the code), `links` (between ``work``
and a copy of the code, both ways), `shared_writes` (ranks that write one file).

To change which directories of the code are real directories in ``work``: `links.fill`.
"""

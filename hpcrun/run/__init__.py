"""The programs of a job on compute nodes, and the session that users' code imports.

Reading order: `keeper` starts `supervisor` (`packed_job` those of runs that share a job, over which
`pack_watch` watches from other nodes), the supervisor an `agent` on each node and a `worker` for
each rank (`script` where that is warm; `enter` puts it into a container, `frozen_python` gives
it the packages of a frozen environment), and `tracker` beside them; `beside` is what a person
starts beside a rank; `session` is the API in a rank. `own_archive` has each read hpcrun once. They
stay where they are: batch scripts start them with ``python -m hpcrun.run.NAME``. The rooms:
`protocol` (between the programs), `job` (the supervisor), `node` (the agent), `fabric` (adapters
and links), `health` (progress and hangs), `program` (programs without a session, read from
outside), `rank`, `parallel`, `checkpoint` and `data` (the session), `roles` (unlike processes of
one run), `tracking`, `profile`.

To change what ranks find in their environment: `rank.rank_environment`.
"""

"""The only door to Slurm: commands, their answers, and what a job knows of itself.

In reading order:

- `patience`: how long a command waits for Slurm; readers have one limit for all questions.
- `client`: run a command of Slurm's and read its refusals; what is asked of Slurm but job states.
- `refusals`: why Slurm refuses a job, and where to look then.
- `site_queries`: what is asked of a site as a whole, many questions to a process.
- `background`: a slow call in a thread.
- `parse`: Slurm's forms of time, and rows of fields.
- `hostlist`: lists of numbers and of node names.
- `clock`: Slurm's time, where a node's clock is wrong.
- `queue`: the state of jobs, and when one is over.
- `pending_reason`: Slurm's reasons why a job waits, in words.
- `allocation`: the job around this process, and whether a run fits into it.
- `steps`: srun's command lines, and its reports of tasks that ended.
- `mpi_types`: the types of MPI that srun prepares ranks for, and which one an MPI knows.
- `job`: a job's own end, time limit and requeue.
- `job_update`: change jobs in the queue, and see what Slurm made of it.
- `requeue_nodes`: what to do about lost nodes before and after a requeue.
- `suspect_exclusion`: the suspect nodes that a job excludes.

To know a new state of a job: `hpcrun.slurm_state`, with the sets that it is in; of a node, what is
usable in `requeue_nodes` and `suspect_exclusion`. To ask Slurm something new: a function in
`client` that builds the command and returns plain values, with `client.command` in a test replaced
by a recorded answer (``tests/slurm/recorded``). Only `hpcrun.submission.sbatch` submits jobs,
through submitit.
"""

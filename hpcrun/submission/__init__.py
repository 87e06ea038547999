"""From compiled specs to jobs: decide about each run, check, freeze the files, call the executor.

In reading order:

- `submit`: the one orchestration of ``hpcrun submit``, its dry run and ``hpcrun run``.
- `lock`: one submit of an experiment at a time.
- `run_actions`: what is done about each run, by its intent and the state of its job.
- `cluster_choice`: whether a submit without a cluster's name goes to another than before.
- `unreached`: runs whose frozen code differs from the code of now, and changes that do not reach
  queued and running ones.
- `preflight`: checks before submission, with `python_probe` for the job's Python.
- `most_hours`: what runs can cost, and whether the user is asked before that.
- `submission_dir`: the submission's directory and what became of the submission; `code` freezes
  the user's code for it.
- `feeder`: give the submission to Slurm, in pieces that fit, with a journal that survives a kill.
- `dependencies`: sbatch's ``--dependency``, and the same wait on this machine.
- `sbatch`: one call of sbatch through submitit, its refusals, and how long an array may be.
- `local`: the executor without Slurm; `run_here`: ``hpcrun run`` in the foreground.

To add a check before submission: write a function in `preflight` that raises UsageError, and call
it in ``check_runs``.
"""

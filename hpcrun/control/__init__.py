"""Act on runs that were submitted: each module does what the command of that name asks for.

In reading order:

- `cancel`: record that runs are cancelled, then end their jobs and processes.
- `requeue`: requeue running jobs, and submit again the runs whose jobs are over.
- `update`: change the limits of jobs in the queue, and write down what Slurm took.
- `wait`: wait until runs have ended.
- `cleanup`: find and remove what runs that are over need no more, and frozen environments that no
  submission has any more; find who needs a run.
- `delete`: delete runs and experiments that nobody needs.
- `rename`: give an experiment another name.
- `annotate`: put tags and notes on runs.
- `removal`: remove files through no link, whoever changes the directories meanwhile.
- `beside_rank`: run a command beside a live rank, and ask all ranks for their stacks.

To add a command that acts on runs: write what it does here, as a function of the selected runs
(`hpcrun.observe.read.selection`) that prints nothing; and a thin ``hpcrun/cli/NAME.py`` that
parses, asks first (`hpcrun.cli.where.ask_first`), calls it and prints.
"""

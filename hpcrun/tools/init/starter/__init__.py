"""The first minutes on a cluster: what it is, a profile of it, and a project that runs as it is.

In reading order: `survey` (all that a login node tells, asked side by side: its networks, Slurm by
`hpcrun.site`, `site_software`, `python_search`), the choices, which are pure: `job_choice`
(partition, account, QOS and size of a first job, by the judges of `hpcrun.check`) and
`root_choice`, the texts in `starter_text`, then `file_plan` (what is there is kept) and
`init_plan`, which puts it together for ``hpcrun init``, and tells it.

To write something more into a profile: a field of `survey.Survey` or of the site, and a line with
its source in `starter_text`. What is not known is said in `init_plan`, never guessed in silence.
"""

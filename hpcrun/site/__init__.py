"""A cluster as it is now, for commands that judge or describe it.

In reading order: `slurm_records` (records and quantities as Slurm writes them), `slurm_site` (the
site in typed form, read in two commands side by side), `site_names` (its names, kept for TAB), then
what the login node tells: `shared_storage` (directories for files, by mount). What is asked of
Slurm stands in `hpcrun.slurm.site_queries`; nothing here decides.

To know more of a site: a question or a field there, a field of `slurm_site`, and an answer in
``tests/site/recorded``.
"""

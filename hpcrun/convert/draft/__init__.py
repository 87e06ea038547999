"""The parts of a spec, made of what was read of a script.

In reading order: `job_resources` (sbatch's options), `run_shape` (ranks, CPUs and GPUs),
`job_environment` (exported variables), `spec_words` (words with unknown parts), `program_flags`
(``config`` and ``args``), `program_entry` (the entry and DeepSpeed), `accelerate_options`,
`spec_sweep` (arrays and loops), `spec_parts` (all of it together) and `spec_text` (YAML).

To carry another option of sbatch over, add it to ``_option`` in `job_resources`.
"""

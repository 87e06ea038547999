"""Convert an sbatch script into a spec and a shell file, for ``hpcrun init --from``.

Verbatim unless certain: nothing is evaluated. In reading order: `conversion` (``convert``, from
text to spec and notes), `spec_file` (the files that are written, and the table beside the script).
`sbatch_lines` reads #SBATCH lines and `script_request` makes keys of them; `shell_words` and
`shell_scan` find the commands of the rest, `variables` what is certain of their values, and
`launch_line` the one that starts the ranks, with what hpcrun makes itself. `spec_text` writes YAML.

To teach it an option of sbatch, add that to `script_request`; a launcher, or an option of srun's,
to `launch_line`. What is not named there leaves the script as it is.
"""

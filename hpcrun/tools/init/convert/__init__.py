"""Convert an sbatch script into a spec and a shell file, for ``hpcrun init --from``.

Verbatim unless certain: nothing is evaluated. In reading order: `conversion` (from text to spec and
notes, and the files that are written), `shell_scan` (the words and commands of the script),
`variables` (what is certain of their values), `launch_line` (the one that starts the ranks, with
what hpcrun makes itself).

To teach it an option of sbatch, add that to `hpcrun.compile.target.sbatch_request`; a launcher, or
an option of srun's, to ``launch_words`` there. What is not named there leaves the script as it is.
"""

"""Convert an sbatch script into a spec, for ``hpcrun init --from``; nothing of it is executed.

In reading order: `conversion` (``convert``, from text to spec and notes), `line_fates` (what may
become of a line), `script_fates` (what became of each) and `spec_file` (the file that is written).
``shell`` reads bash, ``script`` finds what the script asks for and starts, ``draft`` makes the spec
of it.

To teach it a command, add it to `line_fates`, or a method to `hpcrun.convert.script.walk_commands`
where it changes what follows; a launcher goes to `hpcrun.convert.script.launch_line`.
"""

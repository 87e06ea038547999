"""A program that knows nothing of hpcrun, read from outside: its steps, metrics and saves.

The agent of rank 0's node runs `program_reader`, which turns what the program shows without being
changed into lines of the attempt's ``metrics.jsonl`` and events of its ``session.jsonl``, through
`progress_writer`. What it reads is in `sources`; `progress_source` brings their steps to one unit.
`save_watch` sees the program's own saves, `whole_saves` which are no torn ones, `file_search` finds
files. Of a program that meets by MPI, `mpi_type` says how srun is to start its ranks, and
`mpi_world` whether they found each other. All of them are hostile input: reads are bounded, and no
parser raises for what it reads.

To add what a program shows: a module of `sources`.
"""

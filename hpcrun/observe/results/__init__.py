"""Results: what runs came to, how they differ, and an archive of them.

In reading order: `results` is the table of swept values beside metrics (``hpcrun results``);
`diff` compares two experiments or runs (``hpcrun diff``); `export` packs runs without their
checkpoints (``hpcrun export``).

To add a column to the table: `results.collect`. To add a format of it: a method of
`results.Results` beside ``csv`` and ``latex``, and ``--format`` in cli/results.py. To add a file to
the archive: `export.members`, and a line in templates/export.txt.j2.
"""

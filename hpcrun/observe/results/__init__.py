"""Results: what runs came to, and how they differ.

In reading order: `results` is the table of swept values beside metrics (``hpcrun results``);
`diff` compares two experiments or runs (``hpcrun diff``).

To add a column to the table: `results.collect`. To add a format of it: a method of
`results.Results` beside ``csv`` and ``latex``, and ``--format`` in cli/results.py.
"""

"""Tags and notes that people put on runs: on disk beside the plans, which they never change.

In reading order: `annotation` (what a run has, and how a record changes it), `annotation_log` (the
files in which each user of each host appends).

To add something that people say of runs: a field of `Annotation`, its kind in `annotation_log`, and
a command as ``hpcrun/cli/note.py``.
"""

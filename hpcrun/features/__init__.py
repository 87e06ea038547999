"""Features: one folder each with all of its layers, from the spec's block to what `why` tells.

The ``__init__`` of a folder says what is where in it, and holds ``FEATURE``, an object of
`hpcrun.feature.Feature` with the hooks that it needs. The core finds the folders, and imports none
by name: a feature whose folder is taken away is gone, with its key of the spec, and nothing else.

- `object_storage`: copies of checkpoints in an object store.
- `point_search`: values that the runs of a search get as they start.
- `staging`: data on the nodes' own disks.

To add a feature: a folder, its tests in ``tests/features``, a page of docs, and ``make docs``.
"""

"""Read the files of a spec, with marks, interpolation and problems.

In reading order: `problems` (collects mistakes, and words them), `marked_tree` (plain data that
remembers files and lines, and reports what is wrong there), `limits` (how much a file may hold),
`yaml_reader` (YAML and JSON without surprises), `interpolate` (resolves ``${…}``) and `git` (finds
the checkout around a path).

To accept another file format, add a reader beside ``read_json`` in `yaml_reader` that returns a
``Tree``. To add a placeholder ``${hpcrun:NAME}``, add its name to ``NAMES`` in `interpolate`.
"""

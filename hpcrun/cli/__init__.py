"""The command line: one thin file a command, which parses, calls and prints.

- `main`: the ``hpcrun`` command, which imports a command's module only when it runs.
- `global_options`: what every command takes, before its name or after it; `options`: `Output`, and
  SPEC with overrides and sweeps; `spec_here`: SPEC where none is typed; `where`: WHERE and
  ``--where``; `only`: ``--only``; `foreign_options`: what to type for an option that another
  program has.
- From spec to runs: `plan`, `check`, `estimate`, `tune`, `scaling`, `profile`, `submit`, `run`,
  `drill`; `verdict` says at their end what became of the runs, and what to type.
- Reading: `list`, `status`, `top`, `logs`, `results`, `why`, `show`, `diff`, `report`, `export`,
  `weights`.
- Looking inside running ones: `exec`, `shell`, `stacks`.
- Acting on runs: `cancel`, `requeue`, `tag`, `note`, `rename`, `clean`, `delete`.
- `init`: a profile and a project; `doctor`: this cluster and its nodes; `schema`: the JSON Schema
  of specs.
- `help`: topics; `examples`: those in each command's help; `completion`: scripts for shells.
- TAB: `completion_answers`, which reads the `typed_line` without click and asks `spec_keys` for
  what a spec may hold, `condition_keys` for ``--where``, `run_names` for experiments, runs, tags.

To add a command: write ``hpcrun/cli/NAME.py`` with a function ``command``, add it to ``GROUPS`` in
`main` and an example to `examples`, and run ``make docs``. Imports that only the command needs go
inside the function.
"""

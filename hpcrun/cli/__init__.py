"""The command line: a thin function a command, which parses, calls and prints.

- `main`: the ``hpcrun`` command, which imports a command's module only when it runs; `commands`:
  what there is, here, in `hpcrun.tools` and in other packages, with the examples of ``--help``.
- `global_options`: what every command takes, before its name or after it; `options`: `Output`, and
  SPEC with overrides and sweeps, or where none is typed; `where`: WHERE and ``--where``; `only`:
  ``--only``; `foreign_options`: what to type for an option that another program has;
  `program_line`: a program in SPEC's place.
- From spec to runs: `plan`, `check`, `submit`, `run`; `verdict` says at their end what became of
  the runs, and what to type.
- Reading: `list`, `status`, `logs`, `results`, `why`, `show`, `diff`.
- Looking inside running ones: `exec`, with ``shell`` and ``stacks``.
- Acting on runs: `cancel`, `requeue`, `update`, `tag` (and ``note``), `rename`, `clean`, `delete`.
- `help`: topics, and ``schema``, the JSON Schema of specs; `ask`: what answers a question;
  `asked_words`: the words of who asks; `known_messages`: what a message that is pasted means.

To add an option that every command takes: `global_options`, and its value in `options.Output`. To
add a command: write ``hpcrun/cli/NAME.py`` with a function ``command``, add it with an example to
``CORE`` in `commands`, and run ``make docs``. Imports that only the command needs go inside the
function. What the core does not need is a tool: see `hpcrun.tools`. A word of another program that
``hpcrun help`` is to understand: `asked_words`; a message: `known_messages`.
"""

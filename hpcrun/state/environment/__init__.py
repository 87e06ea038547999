"""A run's environment: what the spec says of it, and the frozen ones on disk.

In reading order: `environment_block` (the spec's block, as dataclasses), `secrets_file` (the reader
of the file that ``environment.secrets_file`` names), `frozen_environment` (a frozen environment's
files, and the record of one in a submission), `environment_names` (names in one).

To add a key: a field in `environment_block`, as in `hpcrun.state.spec`. To keep something else of a
frozen environment: a field of `frozen_environment.FrozenEnvironment`.
"""

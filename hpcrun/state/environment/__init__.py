"""What a job runs with: its Python, container, variables and secrets.

In reading order: `environment_block` (the spec's block, as dataclasses), `secrets_file` (the reader
of the file that ``environment.secrets_file`` names).

To add a key: a field in `environment_block`, as in `hpcrun.state.spec`.
"""

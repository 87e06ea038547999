"""A run's environment: what the spec says of it, and the frozen ones on disk.

In reading order: `own_places` (which of several directories may be used, and is no other user's),
`frozen_environment` (a frozen environment's files, and the record of one in a submission),
`environment_names` (names in one).

To keep something else of a frozen environment: a field of `frozen_environment.FrozenEnvironment`.
"""

"""Roles: the unlike processes of one run, as the spec names them and as the plan has them.

In reading order: `role_block` (what users write), `run_entry` (the program of a run or role),
`role_plan` (ranks and nodes of each in a plan), `role_log` (the ledger's events).

To add a key of a role: a field in `role_block` and in `role_plan`, and what is made of it in
`hpcrun.compile.target.role_layout`.
"""

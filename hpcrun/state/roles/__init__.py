"""Roles: the unlike processes of one run, as the spec names them and as the plan has them.

Read `role_block` (what users write), then `role_plan` (ranks and nodes of each). To add a key of a
role: a field in both, what is made of it in `hpcrun.compile.target.role_layout`.
"""

"""Roles of a run while an attempt lasts: what each is told, and what follows when one of them ends.

In reading order: `role_policy` (the decision, a pure function), `role_launch` (each role's launch
file, and who is where), `role_workers` (the processes: started, watched, started anew, ended).

To add a policy: its name in `hpcrun.state.role_plan`, the decision here, the processes last.
"""

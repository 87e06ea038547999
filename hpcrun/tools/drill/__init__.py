"""Faults on purpose, and what each cost: ``hpcrun drill``.

In reading order: `drill` (submits a run that is hurt, and measures), `drill_command`. The faults
are `hpcrun.policy.faults`, and the supervisor makes them by `hpcrun.run.job.fault_injection`.

To add a fault: its name and meaning there, its deed in the latter.
"""

from hpcrun.command import ACT, Command

COMMANDS = (
    Command(
        "drill",
        ACT,
        "Hurt a run on purpose, and see that it comes back.",
        "hpcrun.tools.drill.drill_command:command",
        after="delete",
        hurts=True,
        examples={
            "hpcrun drill finetune.yaml -n": "what would be done to it",
            "hpcrun drill finetune.yaml --fault kill-rank": "one fault",
        },
    ),
)

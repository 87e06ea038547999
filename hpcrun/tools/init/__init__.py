"""A profile of a cluster, and a project that runs on it as it is: ``hpcrun init``.

In reading order: `starter` (what a cluster is, and what is written of it), `convert` (a spec of an
sbatch script), `init_command`.

To change what a project begins with: `starter.starter_text`.
"""

from hpcrun.command import HOUSE, Command

COMMANDS = (
    Command(
        "init",
        HOUSE,
        "A profile of this cluster, and a project that runs on it as it is.",
        "hpcrun.tools.init.init_command:command",
        other_names="configure new quickstart setup",
        examples={
            "hpcrun init first": "a project in a new directory, and a profile of this cluster",
            "hpcrun init first -n": "what would be written there",
            "hpcrun init --from job.sbatch": (
                "a spec of an sbatch script, and what it leaves to you"
            ),
        },
    ),
)

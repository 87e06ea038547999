"""An archive of runs without their checkpoints: ``hpcrun export``.

In reading order: `export` (what is packed, and the archive), `export_command`.

To add a file to the archive: `export.members`, and a line in templates/export.txt.j2.
"""

from hpcrun.command import LOOK, Command

COMMANDS = (
    Command(
        "export",
        LOOK,
        "Runs without their checkpoints, as one archive.",
        "hpcrun.tools.export.export_command:command",
        after="report",
        examples={
            "hpcrun export finetune -o finetune.tar.gz": "for the archive of a paper",
        },
    ),
)

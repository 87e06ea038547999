"""Completion: scripts for bash, zsh and fish, and the answers to TAB.

`completion_command` prints the scripts. On TAB a shell calls `completion_answers`, which reads the
typed line without click and asks `spec_keys` for what a spec may hold, `condition_keys` for
``--where``, `run_names` for experiments, runs and tags, `login_nodes` for those of ``--on``, which
then answer themselves.

To complete a parameter: its function in ``COMPLETERS`` of `completion_answers`.
"""

from hpcrun.command import HOUSE, Command

COMMANDS = (
    Command(
        "completion",
        HOUSE,
        "Completion script for bash, zsh or fish.",
        "hpcrun.tools.completion.completion_command:command",
        after="help",
        examples={
            'eval "$(hpcrun completion bash)"': "in ~/.bashrc; zsh: in ~/.zshrc",
        },
    ),
)

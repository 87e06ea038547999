"""Any command on the login node of a cluster, by the user's own ssh: ``hpcrun --on CLUSTER …``.

`on_command` says where each command goes and what goes along, and has TAB answered there.
`login_node` is the connection, `other_end` the program that is sent to its other end. `checkout`
brings the code that ``submit`` would freeze, `own_copy` hpcrun itself. `followed_lines` goes on
with ``logs -f`` after a connection was lost; `terminal_filter` keeps from this terminal what acts
on it.

To bring something else along: a request of `other_end`, and who asks for it in `on_command`.
"""

from hpcrun.command import HOUSE, Command

COMMANDS = (
    Command(
        "on",
        HOUSE,
        "Any command on a cluster's login node, through ssh.",
        "hpcrun.tools.remote.on_command:command",
        after="schema",
        other_names="remote",
        examples={
            "hpcrun on login.example.org submit finetune.yaml": "with the code of this machine",
            "hpcrun on login.example.org logs -f finetune": "over lost connections too",
        },
    ),
)

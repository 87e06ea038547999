"""The screen of ``hpcrun top``: what ``status`` knows, live, with keys that show and act.

In reading order: `views` takes a picture, one look at the runs, and makes the rows of a view (runs,
queue, nodes) from it; `top_model` holds both, and knows which runs a key is about. `row_list` draws
the columns that a terminal has room for; `pages` show the output of other commands and ask
questions; `top_app` is the whole.

All that is slow is done in threads. What acts on runs, or shows one, is a command of its own, as
one would type it. Only `top_command` imports them: textual is an extra.

To add a view: a function in `views`, its place in `top_model.TopModel.renew`, and its name in
`top_app`.
"""

from hpcrun.command import LOOK, Command

COMMANDS = (
    Command(
        "top",
        LOOK,
        "Runs on a live screen; keys show logs, causes, cancel, requeue.",
        "hpcrun.tools.top.top_command:command",
        after="status",
        other_names="htop monitor screen ui dashboard gui",
        examples={
            "hpcrun top": "your newest experiment, live",
            "hpcrun top finetune --where config.lr=3e-4": "some of its runs",
        },
    ),
)

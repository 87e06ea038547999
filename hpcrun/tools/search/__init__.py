"""A search at a glance, its best spec, and a study that Optuna's tools open: ``hpcrun search``.

In reading order: `search_trials` (the runs of a search with their values), `best_spec` (the spec of
the best of them), `optuna_study` (all of them as Optuna's trials: importance, storage),
`search_command`.

To tell more of a search: a line of `search_command.facts`, and its field of the JSON beside it.
"""

from hpcrun.command import LOOK, Command

COMMANDS = (
    Command(
        "search",
        LOOK,
        "A search at a glance; its best spec, ready to submit.",
        "hpcrun.tools.search.search_command:command",
        after="results",
        other_names="hyperparameters hpo importance optuna",
        examples={
            "hpcrun search study": "trials, the best so far, importance of parameters",
            "hpcrun search study --best > best.yaml": "the best run as a spec of its own",
            "hpcrun search study --storage sqlite:///study.db": "for optuna-dashboard",
        },
    ),
)

"""Estimates of a spec before the queue: memory, time, hours, energy and money, for ``estimate``.

In reading order: `model_facts` (what is known of a model), `training_setup` (what a DeepSpeed
configuration decides), `memory_formulas` (the share of a model that a rank has, and all formulas of
memory; pure), `fitting` (what fits them, and what is nearest), `run_costs` (time, hours, money;
pure), `model_program` (counts a model in the job's Python), `step_follower` (follows a step of it
there), `model_source` (where a run's model comes from, and starts that program), `earlier_runs`
(what was measured, and taken), `estimate` (asks all of them for each group of runs, and what it
says as data), `estimate_text` (the same as text), `estimate_command`.

To add a GPU: a line of `hpcrun.gpu_catalogue.GPUS`, and one of the list in docs/estimate.md. To
follow a new DeepSpeed: ``python -m bench.estimate`` measures what its ranks hold beside what
`memory_formulas` says.
"""

from hpcrun.command import PLAN, Command

COMMANDS = (
    Command(
        "estimate",
        PLAN,
        "Memory, time, hours and money of SPEC's runs, before the queue.",
        "hpcrun.tools.estimate.estimate_command:command",
        after="check",
        other_names="cost costs fit memory price size",
        examples={
            "hpcrun estimate language-model": "memory, hours and money of a run",
            "hpcrun estimate finetune.yaml --parameters 7.5B --gpu h100 --fit": "what fits a GPU",
        },
    ),
)

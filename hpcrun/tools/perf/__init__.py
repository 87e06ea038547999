"""Speed: the fastest configuration, found by trials, speed by nodes, and where a step's time goes.

In reading order: `trial_candidates` (the keys and values to try, each combination compiled, pruned
by the compiler and by its memory, and put in order), `trial_run` (the run that tries them: here, in
this allocation or as a job), `tuning` (all of it, and the spec to submit), `written_file` (what
others wrote is kept), `tune_command`. `scaling` measures one device against many, and draws it for
`scaling_command`.
`profile_run` submits a run of which a few steps are profiled, for `profile_command`. What runs on
the nodes is `hpcrun.tools.perf.on_nodes`.

To try another key by default, add it in `trial_candidates.usual_space`.
"""

from hpcrun.command import PLAN, Command

COMMANDS = (
    Command(
        "tune",
        PLAN,
        "The fastest configuration of SPEC, found by trials.",
        "hpcrun.tools.perf.tune_command:command",
        after="estimate",
        examples={
            "hpcrun tune language-model -n": "what would be tried, and what not, and why",
            "hpcrun tune language-model": "micro batch and ZeRO stage, on this machine",
            "hpcrun tune language-model --time 00:05:00 -o fast.yaml": "in five minutes",
        },
    ),
    Command(
        "scaling",
        PLAN,
        "SPEC's speed on one node or rank against many, measured.",
        "hpcrun.tools.perf.scaling_command:command",
        after="tune",
        examples={
            "hpcrun scaling language-model --nodes 1,2,4 -n": "the batches that would be compared",
            "hpcrun scaling language-model --ranks 1,2,4": "on this machine",
        },
    ),
    Command(
        "profile",
        PLAN,
        "Where a step's time goes, its MFU and its memory, by rank.",
        "hpcrun.tools.perf.profile_command:command",
        after="scaling",
        other_names="bottleneck flops mfu nsys perfetto trace tracing",
        examples={
            "hpcrun profile language-model": "a few steps of it, as a run of their own",
            "hpcrun profile finetune/0 --steps 10 -o profile.html": "of a run, as it was frozen",
        },
    ),
)

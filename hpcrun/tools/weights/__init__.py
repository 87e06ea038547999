"""The weights of a checkpoint for other programs: ``hpcrun weights``.

In reading order: `weights` (chooses checkpoint and Python), `export_program` (what that Python
runs: safetensors or torch's, in shards), `weights_command`. What a checkpoint holds is read by
`hpcrun.run.weights`.

To write another form: a method beside those of `export_program.Layout`.
"""

from hpcrun.command import LOOK, Command

COMMANDS = (
    Command(
        "weights",
        LOOK,
        "A run's weights, whole, as safetensors for other programs.",
        "hpcrun.tools.weights.weights_command:command",
        after="export",
        other_names="consolidate convert safetensors zero_to_fp32",
        examples={
            "hpcrun weights finetune/0 -o out": "the newest checkpoint, in safetensors",
            "hpcrun weights finetune/0@1200 -o out --dtype bf16": "that of a step, rounded",
        },
    ),
)

"""Models and batches that are divided between ranks, by the spec's ``parallel`` block.

In reading order: `rank_layout` (which rank lies where, and their process groups), `tensor_rules`
(matrices that a tensor group holds together), `pipeline_stages` (a model as stages),
`ulysses` (attention over a sequence that is divided), `expert_layer` (experts that are divided
among ranks with different samples), `tensor_shards` (tensors that FSDP2 divides), `tensor_plan`
(which of them a tensor group divides), `engine_setup` (``deepspeed.initialize`` with all but these
two) and `train_batch` (one optimizer step of any layout).

To add an axis: name it in `hpcrun.state.spec.parallel_block`, check it in
`hpcrun.compile.target.parallel_layout`, give it groups in `rank_layout` and divide the model in
`engine_setup`.
"""

"""Checkpoints on the ranks: written, committed, found and restored.

In reading order: `save_policy` (what the session calls), `save` (one save, to the manifest),
`restore` (the newest checkpoint that is sound), `resize` (for another number of ranks),
`init_weights` (of another run), `own_settings` (what the rest of another run leaves to this one),
`node_copy` (copies in the nodes' storage), `deepspeed_io` (patches of DeepSpeed's reading and
writing), `shard_files` (of torch.distributed.checkpoint, for models that FSDP2 divides), `trust`
(whose files are loaded, and how those of others are), `rank_state`, `checkpoint_files`.
The manifest is `hpcrun.state.manifest`, retention is `hpcrun.policy.retention`.

To save something more of each rank: add it to `rank_state.collect` and `rank_state.apply`, and have
`resize.states_of_all` find it for another number of ranks.
"""

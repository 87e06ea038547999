"""Data of a training function: its samples in an order that restarts and ranks do not change.

Reading order: `sample_order` (which example a sample of the run is), `worker_sockets` (why workers
cannot send what they read), `sample_loader` (what ``session.loader`` returns, and a dataset read by
these numbers), `order_record` (the order that a run began with, which it has to go on with),
`wait_record` (the ranks' waits for data); `token_files`, `tar_shards`, `packed_documents`,
`mixture` and `curriculum` (what users put around their datasets); `evaluation` (each sample once,
and exact sums).

To give workers another thing of a sample: add it to what `sample_loader` sends them
(`SampleRequest`), so that it depends on the step or the sample alone.
"""

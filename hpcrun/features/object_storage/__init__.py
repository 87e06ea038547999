"""Copies of finished checkpoints in an object store, and their way back to a root that lost them.

Read `block` (what a spec says), `copy_records` (what the ledger keeps of copies), `store` (what is
done there, by fsspec), `copier` and `fetcher` (checkpoints that go there and come back), `process`
(the program beside the supervisor that runs either), `copies` (its start, its reports and its end)
and `feature`, by which the core knows all of this.

A copy is complete once its manifest is there, the last of its objects. What the ledger has on
record alone is fetched, with the digest of the manifest that was copied: so neither another run's
objects nor what somebody has put in their place is loaded, and no listing is needed. The store's
library is imported in `process` alone, so that neither submission nor the supervisor needs it.

A further store is an entry of `block.LIBRARIES`, with tests against a real server of it.
"""

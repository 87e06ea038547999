"""The check of an attempt's nodes before its ranks are started, and the links while they run.

Reading order: `node_report` (a node's agent looks at its GPUs, clock and storage), `start_check`
(the supervisor compares the nodes, has them measure their links, and acts), `pairing` (which nodes
measure each other, and which is slow), `link_test` (a node's part in that), `pair_link` (bandwidth
and latency between two nodes), `node_links` (interfaces, and nodes that lose the fabric later),
`node_failures` (whose fault it is where a node cannot do what it is asked), `patient_look` (looks
at shared storage that are repeated). What follows is decided in `hpcrun.policy.node_health`.

It costs a healthy start a few tenths of a second (docs/health.md has the figures). GPUs are tested
with a stand-in for NVML, adapters on made trees of ``/sys``.

To check something more: a look in `node_report.report`, its kind in
`hpcrun.policy.node_health`, as a fault or a doubt.
"""

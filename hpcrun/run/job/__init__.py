"""The supervisor's parts: one job, from an attempt's claim to the requeue.

Reading order: `attempt` (one attempt and its loop), `resume_source` (what a script goes on from),
`agents`, `agent_steps`, `rank_places` and `launchers` (the processes), `archive_sending` (what all
nodes would read, sent to them), `stop_request`, `hang_watch`, `fault_injection` and `warm_ranks`
(parts of the loop), `evidence` and `attempt_end` (why it ended, and what follows), `fewer_nodes`,
`notify`, `takeover` (what agents do without a supervisor), `new_supervisor` (of a node that leads
in place of the batch host).

To change how long a node may be silent: `hpcrun.run.protocol.heartbeat`. To start ranks in another
way: a `launchers.Launcher`, chosen by ``launchers.launcher_class``. To add a part to the loop: a
class with ``turn()``, listed in `attempt.RunningAttempt`. To change what a signal does, or how
long a stop may take: `stop_request`. What an end means is decided in
`hpcrun.policy.causes`, and what follows in `hpcrun.policy.recovery`.
"""

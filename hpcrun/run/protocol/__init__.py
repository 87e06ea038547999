"""Messages and files between the programs of a job: supervisor, agents, workers.

Reading order: `launch` (the attempt's ``launch.json``), `channel` (JSON lines over TCP; the
messages are in `hpcrun.run.agent`), `heartbeat` (liveness), `stop_flag` (files that ask ranks to
stop), `attempt_fence` (stale processes exit), `output` (lines in logs).

To add a field for workers: `launch.Launch` or `launch.LaunchNode`. To add a message:
`hpcrun.run.agent.Agent.answer` and `hpcrun.run.job.agents.Agents`.
"""

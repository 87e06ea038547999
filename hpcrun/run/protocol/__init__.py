"""Messages and files between the programs of a job: supervisor, agents, workers.

Reading order: `launch` (the attempt's ``launch.json``), `job_secret` (by which supervisor and
agents know each other), `channel` (JSON lines over TCP; the messages are in `hpcrun.run.agent`),
`switchboard` (the supervisor's channels), `messages` (checks of what agents say), `heartbeat`
(liveness), `stop_flag` (files that ask ranks to stop), `attempt_fence` (stale processes exit),
`output` (lines in logs), `batch_script` (the user's shell scripts around the ranks).

To add a field for workers: `launch.Launch` or `launch.LaunchNode`. To add a message:
`hpcrun.run.agent.Agent.answer`, `hpcrun.run.job.agents.Agents` and, for what it holds, `messages`.
"""

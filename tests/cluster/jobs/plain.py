"""A script that knows no session: rank 1 is stopped at line 5 of attempt 1."""

import os
import signal
import time

first = os.environ["HPCRUN_ATTEMPT"] == "1"
for step in range(1000 if first else 5):
    print("step", step, flush=True)
    if first and os.environ["RANK"] == "1" and step == 5:
        os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(0.5)

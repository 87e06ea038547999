"""A script that waits for a build as torch does; attempt 1 meets the lock of a killed one."""

import os
import time
from pathlib import Path

from torch.utils.cpp_extension import _get_build_directory
from torch.utils.file_baton import FileBaton

lock = Path(_get_build_directory("stale_lock", verbose=False)) / "lock"
if os.environ["HPCRUN_ATTEMPT"] == "1":
    lock.touch()
for step in range(3):
    print("step", step, flush=True)
    time.sleep(0.5)
baton = FileBaton(str(lock))
if baton.try_acquire():
    time.sleep(0.5)
    baton.release()
else:
    baton.wait()
print("built in", lock.parent, flush=True)

"""A place of the program at which one rank does something bad, once, or waits for it to be done.

``config.at`` says where: ``phase`` (of `tests.cluster.faults`), ``step``, ``rank``; what: ``fault``
(of `FAULTS`, or null for none of the rank's own doing); and ``signpost``: a directory that is not
the run's, in which ``reached`` appears when the rank is there. Where ``waits`` is true the rank
goes on once there is a ``go``.
"""

import contextlib
import datetime
import os
import signal
import sys
import time
from pathlib import Path

import deepspeed
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

WAITS = 60


class Phases:
    """The places of one rank's program; a state of the session's, to be there in saves."""

    def __init__(self, session):
        at = session.config.get("at")
        self.step = 0
        self._session = session
        self._at = at if at and at["armed"] and at["rank"] == session.rank else None
        self._group = None
        if at and at["armed"] and at["fault"] == "collective":
            deepspeed.init_distributed(dist_init_required=None)
            long = datetime.timedelta(hours=1)
            self._group = torch.distributed.new_group(backend="gloo", timeout=long)

    def watch(self, model):
        """Be at hand when the model or its optimizer is called."""
        if self._at is not None:
            model.register_forward_pre_hook(lambda *_: self.reach("forward"))
            register_optimizer_step_pre_hook(lambda *_: self.reach("optimizer"))

    def begin(self, step):
        """A step begins."""
        self.step = step
        at = self._at
        restores = at is not None and at["phase"] == "restore" and step == at["step"]
        if restores and self._session.attempt == 1:
            # Nothing is restored before something has ended.
            os.kill(os.getpid(), signal.SIGKILL)

    def state_dict(self):
        self.reach("save")
        return {}

    def load_state_dict(self, state):
        self.reach("restore")

    def reach(self, phase):
        """The rank is at a place, with this step to do."""
        at = self._at
        if at is None or phase != at["phase"]:
            return
        if phase not in ("start-up", "restore") and self.step < at["step"]:
            return
        post = Path(at["signpost"])
        try:
            (post / "reached").mkdir()
        except FileExistsError:
            return
        if at["waits"]:
            wait(post / "go")
        if at["fault"]:
            FAULTS[at["fault"]](self)

    def alone(self):
        torch.distributed.all_reduce(torch.zeros(1), group=self._group)


def wait(path):
    deadline = time.monotonic() + WAITS
    while not path.exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"nobody wrote {path}")
        time.sleep(0.02)


def send(number):
    return lambda _: os.kill(os.getpid(), number)


def raise_exception(_):
    raise ValueError("once is enough")


def leave(_):
    sys.exit(0)


def vanish(_):
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    os._exit(0)


FAULTS = {
    "kill": send(signal.SIGKILL),
    "segfault": send(signal.SIGSEGV),
    "abort": send(signal.SIGABRT),
    "stop": send(signal.SIGSTOP),
    "exception": raise_exception,
    "leave": leave,
    "vanish": vanish,
    "collective": Phases.alone,
}

"""Where the parts of `bench.on_gpu` lie: their specs, runs, and the commands that run them."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

from bench.on_gpu.card import Card, Model
from bench.on_gpu.record import Part
from hpcrun.state import files, layout
from hpcrun.submission.local import processes

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
COPIED = (
    *(HERE / "program.py", ROOT / "jobs/causal_language_model.py"),
    *(HERE.parent / name for name in ("turns.py", "training_hpcrun.py", "training_bare.py")),
)
# Without it no product of matrices is the same to the bit.
DETERMINISTIC = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
TORCH_ADAM = {"torch_adam": True}
# As an agent would: what it compiles is found by the runs that come later.
_BUILD = """
import sys
from hpcrun.run.node import op_cache
names = sys.argv[1:]
op_cache.build(op_cache.of_user(), op_cache.key(names), names)
"""
OF_PROCESSORS, OF_GPUS = "ShareMemCommBuilder", "FusedAdamBuilder"


class Desk:
    """The directory in which all runs are.

    Attributes
    ----------
    card, sizes
        Of this machine.
    root, code
        The directories of the runs, and of the programs.
    behind
        What works behind the parts.
    adam
        DeepSpeed's own Adam, or why there is none.
    speeds
        What `speed` found of its cases, by their names.
    """

    def __init__(self, directory: Path, card: Card) -> None:
        self.card, self.sizes = card, card.sizes
        self.root, self.code = directory / "root", directory / "code"
        self.code.mkdir()
        for path in COPIED:
            shutil.copy(path, self.code)
        self._started: list[subprocess.Popen[bytes]] = []
        self.behind: list[subprocess.Popen[bytes]] = []
        if not card.on_gpu:
            # DeepSpeed's collectives: minutes, which are not to count, where nobody had them yet.
            self.compile(OF_PROCESSORS, directory / "collectives.out").wait()
        self.adam = OwnAdam(self)
        self.speeds: dict[str, dict[str, Any]] = {}

    def environment(self, **more: str) -> dict[str, str]:
        """Return the variables of a process of this checkout."""
        # Not resolved: the Python of a virtual environment is a link.
        own = [str(Path(sys.executable).parent), *self._sites("bin")]
        paths = [str(ROOT), *self._sites()]
        return {
            **os.environ,
            "PATH": os.pathsep.join([*own, os.environ.get("PATH", os.defpath)]),
            "PYTHONPATH": os.pathsep.join(paths),
            **more,
        }

    def _sites(self, *below: str) -> list[str]:
        """Return the directories of PYTHONPATH, where wheels were installed."""
        given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        return [str(Path(one, *below)) for one in given if one and Path(one).resolve() != ROOT]

    def spec(
        self,
        name: str,
        model: Model,
        *,
        entry: str = "program.py:train",
        micro: int = 0,
        stage: int = 1,
        adam: dict[str, Any] = TORCH_ADAM,
        config: dict[str, Any] | None = None,
        **more: Any,
    ) -> Path:
        """Write a spec of one rank, on the GPU where there is one.

        Parameters
        ----------
        micro
            Samples of a micro batch, and of a step; those of the model, if 0.
        adam
            More arguments of the optimizer.
        config, **more
            Further keys of ``config``, and blocks.
        """
        micro = micro or model.micro
        on_gpu = self.card.on_gpu
        place = {"gpus_per_node": 1} if on_gpu else {"ntasks_per_node": 1}
        variables = {"TORCHINDUCTOR_CACHE_DIR": str(self.root.with_name("compiled"))}
        if self._sites():
            variables["PYTHONPATH"] = os.pathsep.join(self._sites())
        if (config or {}).get("deterministic"):
            variables |= DETERMINISTIC
        spec: dict[str, Any] = {
            "name": name,
            "entry": entry,
            "cluster": "local",
            "precision": "bf16",
            "config": {
                "seed": 1,
                "total_steps": self.sizes.steps,
                "tokens": 500_000,
                "deterministic": False,
                "kill_at": 0,
                "save_plainly": 0,
                "stand_in_above": 1_000_000,
                "engine": "deepspeed",
                **model.config(),
                **(config or {}),
            },
            "deepspeed": {
                "train_batch_size": micro,
                "train_micro_batch_size_per_gpu": micro,
                "gradient_clipping": 1.0,
                "zero_optimization": {"stage": stage},
                "optimizer": {
                    "type": "AdamW",
                    "params": {"lr": 3.0e-4, "betas": [0.9, 0.95], **adam},
                },
            },
            "resources": {"nodes": 1, "cpus_per_task": 4 if on_gpu else 1, **place},
            "environment": {"variables": variables},
            "recovery": {"warm_after": None},
            "telemetry": {"every": 1},
        }
        path = self.code / f"{name}.yaml"
        path.write_text(yaml.safe_dump({**spec, **more}, sort_keys=False))
        return path

    def start(self, *arguments: Any, log: Path, behind: bool = False) -> subprocess.Popen[bytes]:
        """Start a command of hpcrun; its output goes to ``log``, and errors beside that."""
        argv = [sys.executable, "-m", "hpcrun", *map(str, arguments), "--root", str(self.root)]
        return self.program(argv, log, self.environment(), behind=behind)

    def program(
        self, argv: list[str], log: Path, environment: dict[str, str], *, behind: bool = False
    ) -> subprocess.Popen[bytes]:
        """Start a program; ``behind`` the parts, it goes on when one is cut."""
        with open(log, "wb") as output, open(log.with_suffix(".err"), "wb") as errors:
            started = subprocess.Popen(
                argv,
                cwd=self.code,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                start_new_session=True,
            )
        (self.behind if behind else self._started).append(started)
        return started

    def compile(self, builder: str, log: Path) -> subprocess.Popen[bytes]:
        """Start to compile an operator of DeepSpeed into this user's cache."""
        # As a job on this machine has them: the cache's name follows from some.
        own = {name: self.environment()[name] for name in ("PATH", "PYTHONPATH")}
        environment = {**processes.clean_environment(), **own}
        argv = [sys.executable, "-c", _BUILD, builder]
        return self.program(argv, log, environment, behind=True)

    def wait(
        self,
        part: Part,
        started: subprocess.Popen[bytes],
        log: Path,
        meanwhile: Callable[[], None] = lambda: None,
        *,
        check: bool = True,
    ) -> str:
        """Return what a command printed; end it with the part's time, and raise CutError."""
        try:
            while started.poll() is None:
                meanwhile()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    started.wait(min(0.3, part.left))
        except BaseException:
            self.end()
            raise
        meanwhile()
        output = log.read_text(errors="replace")
        if check and started.returncode:
            said = log.with_suffix(".err").read_text(errors="replace")[-1500:]
            raise RuntimeError(f"exit code {started.returncode}: {said}\n{output[-500:]}")
        return output

    def hpcrun(
        self,
        part: Part,
        *arguments: Any,
        meanwhile: Callable[[], None] = lambda: None,
        check: bool = True,
    ) -> str:
        """Run a command of hpcrun, and return what it printed."""
        log = self.code / f"{part.name.replace(' ', '-')}-{arguments[0]}.out"
        started = self.start(*arguments, log=log)
        try:
            return self.wait(part, started, log, meanwhile, check=check)
        except RuntimeError as error:
            raise RuntimeError(f"hpcrun {arguments[0]}: {error}{self.tails()}") from None

    def json(self, part: Part, *arguments: Any) -> Any:
        """Run a command of hpcrun, and return its JSON."""
        return json.loads(self.hpcrun(part, *arguments, "--json"))

    def run(self, name: str, number: int = 0) -> layout.RunPaths:
        """Return the files of a run."""
        return layout.experiment(self.root, name).run(number)

    def metrics(self, name: str, number: int = 0) -> dict[int, dict[str, Any]]:
        """Return what was logged of each step; a later attempt's in place of an earlier one's."""
        found: dict[int, dict[str, Any]] = {}
        for attempt in self.run(name, number).attempts():
            for line in files.read_lines(attempt.metrics):
                found[line["step"]] = line
        return found

    def session(self, name: str, event: str) -> list[dict[str, Any]]:
        """Return the events of a kind of run 0's first attempt."""
        lines = files.read_lines(self.run(name).attempt(1).session)
        return [one for one in lines if one["event"] == event]

    def tails(self) -> str:
        """Return the ends of the logs of the newest run's ranks."""
        logs = sorted(self.root.glob("*/runs/*/attempts/*/rank-*.log"), key=_written)[-1:]
        return "".join(f"\n{one.relative_to(self.root)}: {_tail(one)}" for one in logs)

    def end(self) -> None:
        """End what a part has started, and all runs."""
        _kill(self._started)
        for submission in self.root.glob("*/submissions/*"):
            processes.kill_all(submission)


class OwnAdam:
    """DeepSpeed's fused Adam, which nvcc compiles behind the first parts."""

    def __init__(self, desk: Desk) -> None:
        self._log = desk.code / "adam.out"
        self._process: subprocess.Popen[bytes] | None = None
        self.told = "torch's (torch_adam: true), as there is no GPU"
        if desk.card.on_gpu and not desk.card.nvcc:
            self.told = "torch's (torch_adam: true), as no nvcc is here to compile DeepSpeed's"
        elif desk.card.on_gpu:
            self._process = desk.compile(OF_GPUS, self._log)
            self.told = "torch's (torch_adam: true), as DeepSpeed's was not compiled in time"

    def arguments(self, part: Part, patience: float = 60.0) -> dict[str, Any]:
        """Return what the optimizer needs beside: nothing, once DeepSpeed's is compiled."""
        if self._process is None:
            return TORCH_ADAM
        until = time.monotonic() + min(patience, part.left)
        while self._process.poll() is None and time.monotonic() < until:
            time.sleep(0.2)
        if self._process.returncode == 0:
            self.told = "DeepSpeed's FusedAdam, compiled here"
            return {}
        if self._process.returncode is not None:
            self.told = f"torch's (torch_adam: true); DeepSpeed's: {_tail(self._log)[-600:]}"
        return TORCH_ADAM


@contextlib.contextmanager
def desk(directory: Path, card: Card) -> Iterator[Desk]:
    """Lay a desk, and clear it whatever happens."""
    made = Desk(directory, card)
    try:
        yield made
    finally:
        made.end()
        _kill(made.behind)


def _kill(started: list[subprocess.Popen[bytes]]) -> None:
    for one in started:
        if one.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(one.pid, signal.SIGKILL)
            one.wait()
    started.clear()


def _written(path: Path) -> float:
    return path.stat().st_mtime


def _tail(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text(errors="replace")[-1200:]
    return ""

"""The worker, one per rank: sets the environment and runs the user's entry.

It calls a function in its own process. A script or command becomes a child, so that its end is on
record however it ends.
"""

from __future__ import annotations

import gc

from hpcrun.run import own_archive

if __name__ == "__main__":
    own_archive.read_once()
    # Imports leave no garbage behind: nobody looks for it until `main`.
    gc.disable()

import argparse
import atexit
import contextlib
import importlib
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from functools import partial
from pathlib import Path
from typing import TypeAlias

from hpcrun.errors import EXIT_FAILED, EXIT_OK, EXIT_SAVED, HpcrunError
from hpcrun.extensions import attribute_at
from hpcrun.policy import frameworks
from hpcrun.run.node import rank_processes
from hpcrun.run.program import mpi_world
from hpcrun.run.protocol import batch_script, output, stop_flag
from hpcrun.run.protocol.attempt_fence import EXIT_STALE, AttemptFence
from hpcrun.run.protocol.launch import VARIABLE, Launch, LaunchNode
from hpcrun.run.protocol.output import tell
from hpcrun.run.rank import warm_up
from hpcrun.run.rank.rank_environment import environment, rank_place, step_variables
from hpcrun.run.work import links
from hpcrun.state import files, session_log
from hpcrun.state.environment import secrets_file
from hpcrun.state.node_layout import ScratchPaths
from hpcrun.state.plan import CALLED_BY
from hpcrun.state.role_plan import ROLES
from hpcrun.text import signal_name

# Without a width, argparse would import shutil to ask the terminal, once for each argument.
PLAIN_HELP = partial(argparse.HelpFormatter, width=100)
_LOOK_EVERY = 0.2
# Each rank asks the file server so often whether its attempt was replaced.
_STALE_EVERY = 5.0

Child: TypeAlias = "subprocess.Popen[bytes]"


def rank_of(launch: Launch, argument: int | None) -> int:
    """Return this process's rank in its role, from the supervisor or else from Slurm.

    Raises HpcrunError if Slurm started a different number of tasks than the attempt has ranks.
    """
    if argument is not None:
        return argument - launch.first_rank
    tasks = int(os.environ.get("SLURM_STEP_NUM_TASKS") or os.environ.get("SLURM_NTASKS") or 0)
    if tasks != launch.world_size:
        raise HpcrunError(f"Slurm started {tasks} tasks where {launch.world_size} ranks are needed")
    return int(os.environ["SLURM_PROCID"])


def import_paths(launch: Launch, node: LaunchNode) -> list[str]:
    """Return the directories to import an entry's modules from first."""
    entry, code = launch.entry, Path(node.code)
    if entry.file is not None:
        return [str((code / entry.file).parent)]
    own = [] if entry.import_root is None else [str(code / entry.import_root)]
    return [*own, str(code / launch.working_directory), str(code)]


def add_warm_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that `warm_up.arguments` returns."""
    parser.add_argument("--warm", help="wait for the next attempt: the nodes of the step")
    parser.add_argument("--spares", nargs="+", default=(), help="NODE=DIRECTORY")


def wait_to_be_called(
    launch: Launch, task: int, arguments: argparse.Namespace, *, imports: bool
) -> tuple[Launch, int]:
    """Return the attempt that this warm rank joins, and its rank there; exit if it is not needed.

    ``arguments`` are those of `add_warm_arguments`, ``task`` is the number in the step. With
    ``imports``, import meanwhile all that ranks do.
    """
    try:
        place = warm_up.WarmPlace(launch, task, arguments.warm.split(","), arguments.spares)
        launch, rank = place.launch, place.rank
        node = launch.node_of(rank)
        warm_up.check_room(launch.ranks_per_node)
        if imports:
            # Those that name the running attempt would mark what an import starts as its own.
            variables = environment(launch, rank)
            for name in (VARIABLE, rank_processes.SCRATCH_VARIABLE):
                del variables[name]
            noted, first = launch.paths.modules, import_paths(launch, node)
            warm_up.import_all(noted, variables, Path(node.code), first)
        called = warm_up.wait(place)
    except HpcrunError as error:
        tell(error.message)
        os._exit(EXIT_FAILED)
    if called is None:
        os._exit(EXIT_OK)
    if "SLURM_PROCID" in os.environ:
        # Its own step has other nodes.
        os.environ.update(step_variables(*called))
    return called


def take_place(launch: Launch, rank: int) -> None:
    """Take on a rank's environment variables, the user's secrets and its directory."""
    os.environ.update(secrets_file.read(launch.environment.secrets_file))
    os.environ.update(environment(launch, rank))
    framework = frameworks.of(launch.entry.framework)
    changes = batch_script.batch_variables(launch, os.environ) if framework.one_per_run else {}
    os.environ.update({name: value for name, value in changes.items() if value is not None})
    for name in (*framework.hidden, *(name for name, value in changes.items() if value is None)):
        os.environ.pop(name, None)
    # This interpreter has read it already.
    added = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path += [path for path in added if path and path not in sys.path]
    start_up = ScratchPaths(Path(launch.node_of(rank).scratch)).start_up
    if start_up.is_dir():
        # So that programs without a session can tell where they hang.
        paths = [str(start_up), os.environ.get("PYTHONPATH")]
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    # Its batch script may have gone elsewhere before it started the ranks.
    os.chdir(os.environ.get(batch_script.DIRECTORY) or links.directory_of_rank(launch, rank))


def call_function(launch: Launch, node: LaunchNode, rank: int) -> int:
    """Import the entry's module from the frozen code and call its function with the session."""
    entry = launch.entry
    assert entry.module is not None
    assert entry.function is not None
    sys.path[:0] = import_paths(launch, node)
    from hpcrun.run.profile import step_recorder
    from hpcrun.run.session import session

    step_recorder.begin()
    # torch 2.13 warns at every step of ZeRO, once a collective, about a call of DeepSpeed's own.
    warnings.filterwarnings("ignore", category=FutureWarning, module="torch.distributed")
    function = getattr(importlib.import_module(entry.module), entry.function)
    if CALLED_BY in launch.spec:
        function = partial(attribute_at(launch.spec[CALLED_BY]), launch, function)
    current = session()
    try:
        function(current)
    except SystemExit as leaving:
        if leaving.code not in (None, 0):
            current.leave(failing=True)
            raise
    except BaseException:
        current.leave(failing=True)
        raise
    mpi_world.at_exit()
    if rank == 0:
        record_if_alone(launch, Path(node.scratch))
    current.finish()
    return EXIT_OK


def command(launch: Launch, rank: int) -> list[str]:
    """Return the command line of a script or command.

    A script has its path in the working directory, so that what it writes beside itself is kept;
    Python follows the link for its imports.
    """
    entry, node = launch.entry, launch.node_of(rank)
    arguments: list[str] = launch.fill(list(entry.argv), node)
    if entry.kind == "script":
        assert entry.file is not None
        arguments = [sys.executable, str(launch.mirror(rank) / entry.file), *arguments]
    return arguments + frameworks.of(entry.framework).arguments(rank_place(launch, rank))


def run_child(launch: Launch, node: LaunchNode, rank: int, child: Child | None = None) -> int:
    """Start the script or command, pass a stop on to it, and wait for its end.

    ``child`` is the script where it was warm already. The exit code is negative for a signal.
    """
    wanted = _stop_signal(launch)
    scratch = Path(node.scratch)
    stop_flag.outlive_signals(scratch)
    if child is None or child.poll() is not None:
        child = _start(launch, rank)
    asked, sent = False, 0
    fence = AttemptFence(launch.paths, _STALE_EVERY)
    # A wait with a time limit would look 20 times a second, next to a program that trains.
    waiting = threading.Thread(target=child.wait, daemon=True)
    waiting.start()
    waiting.join(_LOOK_EVERY)
    while waiting.is_alive():
        if fence.passed():
            child.kill()
            os._exit(EXIT_STALE)
        if wanted and not asked and ScratchPaths(scratch).stop.exists():
            asked = True
            number = signal.Signals[wanted]
            from hpcrun.run.node import cgroup

            if cgroup.signals_only_tasks() or not ScratchPaths(scratch).heard(number).exists():
                child.send_signal(sent := number)
        waiting.join(_LOOK_EVERY)
    code = child.wait()
    if sent and code == -sent:
        rank_processes.pass_on(scratch, sent)
    if launch.is_main and ScratchPaths(scratch).left.exists():
        # Its session has saved and left, with a code that torchrun or a shell may have replaced.
        return EXIT_SAVED
    if asked and (code == 0 or -code == signal.Signals[str(wanted)]):
        # It saved, or had not begun. A finished program ends at once when it is started again.
        return EXIT_SAVED
    if code == 0 and rank == 0 and launch.is_main:
        record_if_alone(launch, scratch)
        others = launch.world_size > 1 or bool(launch.spec.get(ROLES))
        if left := rank_processes.left_running(scratch, only_group=others):
            event = session_log.record(session_log.LEFT_RUNNING, command=left)
            files.append(launch.paths.session, event)
        files.append(launch.paths.session, session_log.record(session_log.FINISHED))
    return code


def record_if_alone(launch: Launch, scratch: Path) -> None:
    """Write down that MPI took each of several ranks for the only one."""
    if launch.world_size > 1 and mpi_world.worked_alone(scratch):
        files.append(launch.paths.session, session_log.record(session_log.ALONE))


def _stop_signal(launch: Launch) -> str | None:
    """Return the signal by which a program is asked to save; the other roles' have nothing to."""
    return launch.recovery.stop_signal if launch.is_main else None


def _start(launch: Launch, rank: int) -> Child:
    arguments = command(launch, rank)
    try:
        return subprocess.Popen(
            arguments,
            # By one that srun has opened (PMI_FD), MPI finds the other ranks.
            close_fds=False,
            preexec_fn=partial(ignore_slurms_signals, launch),
        )
    except OSError as error:
        raise HpcrunError(
            f"the command {arguments[0]!r} cannot be started: {error.strerror}",
            hint="relative paths are looked up in the run's working directory, where the frozen "
            f"code's files are found too: {launch.directory_of(rank)}",
        ) from error


def ignore_slurms_signals(launch: Launch) -> None:
    """Have this process, and what it becomes, ignore the step's signals but its stop signal.

    Slurm sends them to every process, and they would end a program that knows nothing of them. Its
    own stop signal stays as it is, because a shell cannot trap what it began with ignoring; so does
    TERM where it has none, by which programs end their children.
    """
    own = signal.Signals[_stop_signal(launch) or "SIGTERM"]
    for number in stop_flag.SIGNALS:
        if number != own:
            signal.signal(number, signal.SIG_IGN)


def record_end(launch: Launch, rank: int, code: int, error: BaseException | None = None) -> None:
    """Write the record of a bad end for the supervisor. Best effort on a full disk."""
    path = launch.paths.exit_record(launch.number(rank))
    record = {
        "rank": launch.number(rank),
        "node": launch.node_of(rank).name,
        "time": time.time(),
        "exit_code": None if code < 0 else code,
        "signal": signal_name(-code) if code < 0 else None,
        "exception": None if error is None else type(error).__name__,
        "message": None if error is None else _words(error),
        "traceback": None if error is None else _printable(_traceback_of(error)),
    }
    files.patiently(lambda: files.write_json(path, record), tell, path.name)


def _traceback_of(error: BaseException) -> str:
    import traceback

    return "".join(traceback.format_exception(error))


def _words(error: BaseException) -> str:
    if isinstance(error, HpcrunError):
        return error.message + (f" ({error.hint})" if error.hint else "")
    return _printable(str(error))


def _printable(text: str) -> str:
    """Escape lone surrogates, which no terminal can show."""
    return text.encode(errors="backslashreplace").decode()


def work(launch: Launch, rank: int, child: Child | None = None) -> int:
    """Run the entry in this rank and return the exit code of this process."""
    node = launch.node_of(rank)
    AttemptFence(launch.paths).check(always=True)
    code: int
    try:
        rank_processes.register(Path(node.scratch), launch.number(rank))
        take_place(launch, rank)
        if rank == 0:
            from hpcrun.run.data import worker_sockets

            if warning := worker_sockets.warning():
                tell(warning)
        if launch.entry.kind == "function":
            stop_flag.outlive_signals(Path(node.scratch))
            return call_function(launch, node, rank)
        code = run_child(launch, node, rank, child)
        if code:
            record_end(launch, rank, code)
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else EXIT_FAILED
        record_end(launch, rank, code)
        if isinstance(leaving.code, str):
            with contextlib.suppress(OSError):
                print(leaving.code, file=sys.stderr)
    except BaseException as error:
        code = EXIT_FAILED
        # Before a script or command there is no line of the user's in a traceback.
        is_ours = isinstance(error, HpcrunError) and launch.entry.kind != "function"
        text = f"error: {error}\n" if is_ours else _traceback_of(error)
        with contextlib.suppress(OSError):
            print(text, end="", file=sys.stderr, flush=True)
        record_end(launch, rank, code, error)
    return code if code >= 0 else 128 - code


def main() -> None:
    gc.freeze()
    gc.enable()
    parser = argparse.ArgumentParser(prog="hpcrun.run.worker", formatter_class=PLAIN_HELP)
    parser.add_argument("launch", type=Path)
    parser.add_argument("--rank", type=int)
    add_warm_arguments(parser)
    arguments = parser.parse_args()
    stop_flag.unblock()
    output.drop_lines_on_full_disk()
    launch = Launch.read(arguments.launch)
    child: Child | None = None
    if arguments.warm is None:
        rank = rank_of(launch, arguments.rank)
    else:
        task = int(os.environ["SLURM_PROCID"]) if arguments.rank is None else arguments.rank
        is_script = launch.entry.kind == "script"
        if is_script:
            # The script waits for the call in a process of its own.
            rank_processes.lead_group()
            warm_up.ignore_signals()
            argv = [sys.executable, "-m", "hpcrun.run.script", *sys.argv[1:], "--rank", str(task)]
            child = subprocess.Popen(argv, close_fds=False)
        launch, rank = wait_to_be_called(launch, task, arguments, imports=not is_script)
    code = work(launch, rank, child)
    if code == EXIT_OK:
        wait_for_threads_and_exit_handlers()
    if arguments.warm is not None:
        # The supervisor whose srun has started it may be gone.
        rank_processes.write_end(Path(launch.node_of(rank).scratch), rank, code)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    # The threads of gloo and NCCL outlive the interpreter's state: a rank that had finished was
    # seen to abort ("terminate called without an active exception"), one that failed to hang.
    os._exit(code)


def wait_for_threads_and_exit_handlers() -> None:
    """Do what the interpreter does for the user's code before it tears itself down.

    Pools of threads end as they are told by `threading`, which has no public name for it.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()


if __name__ == "__main__":
    main()

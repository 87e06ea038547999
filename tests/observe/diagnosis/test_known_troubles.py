"""Troubles of which a program's code is innocent, by the words in which they come."""

from __future__ import annotations

import pytest

from hpcrun.observe.diagnosis import advice

SHM = "unable to open shared memory object </torch_7_1> in read-write mode: No space left on device"
SOCKET = "The server socket has failed to listen"
# What the exception or the log says, and a part of the advice.
SAID = [
    ("OSError", "[Errno 116] Stale file handle: 'data/x'", "gone from its file server"),
    ("OSError", "[Errno 122] Disk quota exceeded", "quota -s"),
    ("OSError", "[Errno 28] No space left on device: '/dev/shm/x'", "memory of n2"),
    ("RuntimeError", SHM, "memory of n2"),
    ("OSError", "[Errno 28] No space left on device: 'out.pt'", "A disk of n2 is full"),
    ("OSError", "[Errno 98] Address already in use", "MASTER_PORT"),
    ("DistNetworkError", f"{SOCKET} (errno: 98 - Address already in use)", "MASTER_PORT"),
    ("RuntimeError", "DataLoader worker (pid 7) is killed by signal: Bus error.", "memory of n2"),
    ("AcceleratorError", "CUDA error: uncorrectable ECC error encountered", "resources.exclude=n2"),
    ("DistBackendError", "NCCL error in: x.cpp:3, unhandled system error", "collective"),
    ("RuntimeError", "[x.cc:5] Connection closed by peer [10.0.0.1]:1", "collective"),
    ("ImportError", "/tmp/x.so: failed to map segment from shared object", "noexec"),
    ("ImportError", "libcudart.so.12: cannot open shared object file: No such file", "module load"),
    ("ImportError", "/x/a.so: undefined symbol: ncclCommRegister", "module load"),
    ("GatedRepoError", "401 Client Error. (Request ID: Root=1-2)", "HF_TOKEN"),
    ("DistStoreError", "Timed out after 901 seconds waiting for clients", "met"),
    ("AcceleratorError", "CUDA error: invalid device ordinal", "LOCAL_RANK"),
    ("AcceleratorError", "CUDA-capable device(s) is/are busy or unavailable", "has the GPU of n2"),
    ("OSError", "[Errno 5] Input/output error: 'data/x'", "Storage of n2 failed"),
    ("OSError", "[Errno 30] Read-only file system: '/opt/x'", "container.mounts"),
    ("RuntimeError", "can't start new thread", "OMP_NUM_THREADS"),
    ("RuntimeError", "Error building extension 'fused_adam'", "torch_adam"),
    ("RuntimeError", "PytorchStreamReader failed reading zip archive", "is cut off"),
    ("RuntimeError", "Error(s) in loading state_dict for Model", "another model"),
    ("DistBackendError", "Bootstrap : no socket interface found", "fabric.fast_interface"),
    ("RuntimeError", "Gloo connectFullMesh failed with x", "met in time"),
]  # fmt: skip
WRITTEN = [
    (["/bin/bash^M: bad interpreter: No such file or directory"], "line ends of Windows"),
    (["run.sh: line 2: $'\\r': command not found"], "line ends of Windows"),
    (["NVRM: Xid (PCI:0000:17:00): 79, GPU has fallen off the bus"], "broken or was reset"),
]  # fmt: skip
OWN = [
    ("KeyError", "'DATA_DIR'", ['  File "a.py", line 3, in f', "KeyError: 'DATA_DIR'"]),
    ("ValueError", "batch 17 is bad", ["ValueError: batch 17 is bad"]),
    ("ValueError", "it is bad", ["n1: NCCL WARN a call failed, retries", "ValueError: it is bad"]),
    ("FileNotFoundError", "[Errno 2] No such file or directory: 'a.txt'", []),
    ("PermissionError", "[Errno 13] Permission denied: 'a.txt'", []),
]


@pytest.mark.parametrize(("exception", "message", "told"), SAID)
def test_what_an_exception_says(exception: str, message: str, told: str) -> None:
    cause = {"exception": exception, "message": message, "node": "n2"}
    assert told in str(advice.known_trouble(cause, "study/0"))


def test_a_bus_error() -> None:
    cause = {"signal": "SIGBUS", "message": "rank 0 on n2 was ended by SIGBUS", "node": "n2"}
    told = str(advice.known_trouble(cause, "study/0"))
    assert "HF_HOME: '${hpcrun:scratch}/hf'" in told
    assert "full of n2" not in told


@pytest.mark.parametrize(("lines", "told"), WRITTEN)
def test_what_a_log_ends_with(lines: list[str], told: str) -> None:
    found = advice.known_trouble({"log_tail": lines, "exception": None}, "study/0")
    assert told in str(found)
    assert "{" not in str(found)


@pytest.mark.parametrize(("exception", "message", "lines"), OWN)
def test_what_is_the_programs_own(exception: str, message: str, lines: list[str]) -> None:
    cause = {"exception": exception, "message": message, "log_tail": lines}
    assert advice.known_trouble(cause, "study/0") is None


def test_all_nodes_of_ranks_that_failed_together() -> None:
    cause = {"exception": "OSError", "message": "No space left on device", "node": "n1"}
    told = str(advice.known_trouble({**cause, "failed_on": ["n1", "n2"]}, "study/0"))
    assert "of n1, n2 " in told
    many = [f"n{index}" for index in range(9)]
    told = str(advice.known_trouble({**cause, "failed_on": many}, "study/0"))
    assert "n3 and 5 more" in told

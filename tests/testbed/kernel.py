"""The few system calls that Python 3.11 has no wrapper for."""

from __future__ import annotations

import ctypes
import os
import signal
from pathlib import Path

CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_RDONLY = 1
MS_REMOUNT = 32
MS_BIND = 4096
MS_REC = 16384
MS_PRIVATE = 1 << 18

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")


def unshare(flags: int) -> None:
    """Leave the namespaces named by `flags` for new ones."""
    _check(_libc.unshare(flags), f"unshare({flags:#x})")


def setns(fd: int, kind: int) -> None:
    """Join the namespace behind `fd`, which must be of `kind`."""
    _check(_libc.setns(fd, kind), f"setns({kind:#x})")


def mount(source: str, target: str, kind: str = "", flags: int = 0, data: str = "") -> None:
    """mount(2); empty strings stand for NULL."""
    raw = [text.encode() or None for text in (source, target, kind)]
    result = _libc.mount(*raw, ctypes.c_ulong(flags), data.encode() or None)
    _check(result, f"mount {kind or 'bind'} {source} on {target}")


def bind(source: str, target: str, *, read_only: bool = False, deep: bool = True) -> None:
    """Show `source`, with everything mounted below it if `deep`, at `target`."""
    mount(source, target, flags=MS_BIND | (MS_REC if deep else 0))
    if read_only:
        mount("", target, flags=MS_BIND | MS_REMOUNT | MS_RDONLY)


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent ends, however that happens."""
    _check(_libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl")


def set_hostname(name: str) -> None:
    """Rename the host that this UTS namespace shows."""
    raw = name.encode()
    _check(_libc.sethostname(raw, len(raw)), "sethostname")


def pid_in_mounted_proc() -> int:
    """Return this process's id as /proc counts it: before /proc is remounted, the outer id."""
    return int(str(Path("/proc/self").readlink()))


def reap_for_ever() -> None:
    """Be process 1: wait for every orphan that ends here."""
    import time

    while True:
        try:
            os.wait()
        except ChildProcessError:
            time.sleep(0.2)

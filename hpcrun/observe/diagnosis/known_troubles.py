"""Troubles of a node, a site or a job that end programs whose code is right.

Pure. Each is known by the words of the system, of Python, torch or NCCL, in what a rank wrote last;
the first that is found counts, so the narrower ones come first.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from hpcrun.text import listed

# Nodes that are named, or left out.
_SHOWN = 4
# Words that say it -> what it is and what helps. {name}: the run; {on_node}, {exclude}: the ranks'
# nodes.
_TROUBLES = (
    (
        r"[Uu]ncorrectable (?:NVLink |ECC )?error|NVRM: Xid|fallen off the bus|NVLink error"
        r"|CUDA error: (?:unspecified launch failure|hardware)",
        "The GPU{on_node} is broken or was reset: tell those who run the site; with {exclude} the "
        "run does without that node",
    ),
    (
        r"Stale (?:NFS )?file handle",
        "A file or directory that was in use is gone from its file server: replaced or removed "
        "from another host, or the export was mounted anew. What the program reads must stay for "
        "as long as it runs (the frozen code, environment.venv=frozen and staging.paths do)",
    ),
    (
        r"[Dd]isk quota exceeded|\bEDQUOT\b",
        "The quota of the file system that it wrote to is used up: `quota -s` (`lfs quota -h` on "
        "Lustre) tells it, `hpcrun clean` removes what old runs left, and checkpoint.keep bounds "
        "what this one keeps",
    ),
    (
        r"insufficient shared memory|unable to (?:open|allocate|mmap) shared memory"
        r"|DataLoader worker .*killed by signal: Bus error|/dev/shm\S*['\"]?[:,].*No space left"
        r"|No space left on device[^\n]*/dev/shm|Error while creating shared memory",
        "Shared memory{on_node} is too small or full (`hpcrun exec {name} df -h /dev/shm` while it "
        "runs): fewer or no workers of the DataLoader, smaller batches, or in the program "
        "torch.multiprocessing.set_sharing_strategy('file_system')",
    ),
    (
        r"\bSIGBUS\b",
        "A file that was mapped into memory became shorter, or its storage is full: mostly "
        "two nodes write one cache (environment.variables with HF_HOME: '${{hpcrun:scratch}}/hf' "
        "gives each node its own), else /dev/shm or the disk{on_node} is full",
    ),
    (
        r"No space left on device|\bENOSPC\b",
        "A disk{on_node} is full. Where it is shared storage, `hpcrun clean` removes what old runs "
        "left; where it is the node's own, TMPDIR and caches belong on another one "
        "(environment.variables.TMPDIR)",
    ),
    (
        r"[Aa]ddress already in use|\bEADDRINUSE\b",
        "A port that the program names is another process's{on_node}: let it be chosen. hpcrun "
        "sets MASTER_ADDR and MASTER_PORT to a free one for each attempt: use them in place of a "
        "number (torchrun alone on a node: --standalone)",
    ),
    (
        r"\^M: bad interpreter|\$?'?\\r'?: command not found|\r: command not found"
        r"|\r'?: No such file or directory|syntax error near unexpected token `\S*\\r'",
        "The script has the line ends of Windows: `sed -i 's/\\r$//' SCRIPT` mends it",
    ),
    (
        r"failed to map segment from shared object|\.so[\w.]*: cannot open shared object file: "
        r"Operation not permitted",
        "A library lies where nothing may be executed (a TMPDIR or home that is mounted noexec): "
        "environment.variables.TMPDIR (or TORCH_EXTENSIONS_DIR, TRITON_CACHE_DIR) has to name "
        "another place",
    ),
    (
        r"\bncclSystemError|\bncclRemoteError|\bncclInternalError|NCCL (?:error|WARN)"
        r"|NCCL communicator was aborted|Watchdog caught collective operation timeout"
        r"|Connection closed by (?:remote )?peer|Connection reset by peer",
        "A collective operation broke off: mostly another rank ended first (`hpcrun logs {name}` "
        "shows all), or a link failed (`hpcrun doctor --nodes` measures them; "
        "environment.variables.NCCL_DEBUG=INFO has NCCL say more)",
    ),
)
# They say by themselves what is wrong: a warning that was written before them is another matter.
_OWN = """
ArithmeticError AssertionError AttributeError ImportError IndentationError IndexError LookupError
ModuleNotFoundError NameError NotImplementedError OverflowError RecursionError SyntaxError TypeError
UnboundLocalError UnicodeDecodeError UnicodeEncodeError ValueError ZeroDivisionError
"""
_PROGRAMS_OWN = frozenset(_OWN.split())
_PATTERNS = [(re.compile(pattern), sentence) for pattern, sentence in _TROUBLES]


def explanation(cause: Mapping[str, Any], name: str) -> str | None:
    """Return the trouble and what helps, as a sentence without its period; None for any other end.

    ``cause`` is that of a rank that ended badly, as the ledger has it; ``name`` the run's.
    """
    said = " ".join(str(cause.get(name) or "") for name in ("exception", "message", "signal"))
    is_own = cause.get("exception") in _PROGRAMS_OWN
    written = "" if is_own else "\n".join(map(str, cause.get("log_tail") or ()))
    nodes = cause.get("failed_on") or [one for one in [cause.get("node")] if one]
    words = {
        "name": name,
        "on_node": f" of {listed(nodes, _SHOWN)}" if nodes else "",
        "exclude": "resources.exclude"
        + (f"={','.join(nodes)}" if 0 < len(nodes) <= _SHOWN else ""),
    }
    for text in (said, written):
        for pattern, sentence in _PATTERNS:
            if pattern.search(text):
                return sentence.format(**words)
    return None

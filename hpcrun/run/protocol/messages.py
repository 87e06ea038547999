"""Checks of what agents say, so that a wrong message costs no more than itself.

An agent has proved that it is one, and may still be broken: what it reports is of its own node and
ranks, of the right types, and names no path but those that its node's directory has.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, TypeVar

from hpcrun.fields import LAST_TIME
from hpcrun.policy import node_health
from hpcrun.run.fabric.link_check import KINDS
from hpcrun.run.health.program_hangs import NodeTraffic, RankActivity
from hpcrun.run.health.progress import PHASES, RankProgress
from hpcrun.run.protocol import stop_flag
from hpcrun.run.protocol.launch import Interface, LaunchNode
from hpcrun.shared_dataclass import names
from hpcrun.state.node_layout import PREFIX, NodePaths, ScratchPaths

_PORTS = range(1, 1 << 16)
_PHASES = range(len(PHASES))
_HEALTH = node_health.FAULTS | node_health.DOUBTS | node_health.OF_SITES
_NUMBERS = range(-(1 << 63), 1 << 63)
_BYTES = range(1 << 63)
_CODES = range(256)
_TEXT_MOST = 10_000
_FAILED_MOST, _FILES_MOST, _PORTS_MOST = 20, 200, 128
_KEY = re.compile(r"[0-9a-f]{20}")
_INTERFACE = re.compile(r"[!-~]{1,64}")
_ADAPTERS = re.compile(r"=[!-~]{1,4000}")
_COPIED_PYTHON = re.compile(
    rf"{PREFIX}data-[0-9]+-[0-9a-f]{{20}}(?:-[0-9a-f]{{1,8}})?/data/environment/bin/python"
)
_PROGRESS = {*names(RankProgress)}


_Counts = TypeVar("_Counts", RankActivity, NodeTraffic)


class BadMessage(ValueError):
    """A message that a sound agent of that node does not send."""


def _require(holds: object, what: str) -> None:
    if not holds:
        raise BadMessage(what)


def number(value: Any, what: str, allowed: Collection[int] = _NUMBERS) -> int:
    """Return a whole number that is in a range."""
    _require(type(value) is int and value in allowed, what)
    return int(value)


def text(value: Any, what: str) -> str:
    """Return a text, cut to a length that fits into a log."""
    _require(isinstance(value, str), what)
    return str(value)[:_TEXT_MOST]


def failure(message: Mapping[str, Any]) -> tuple[str, str]:
    """Return why a node failed, and what that is about: a word, empty for the node itself."""
    about = message.get("about", "")
    _require(about in ("", "storage", "build"), "about")
    return text(message.get("message"), "message"), str(about)


def _by_rank(value: Any, ranks: Collection[int], what: str) -> dict[int, Any]:
    """Return what a mapping has for each rank, whose number is a text in JSON."""
    _require(isinstance(value, dict) and len(value) <= len(ranks), what)
    found = {}
    for name, each in value.items():
        rank = int(name) if name.isdecimal() and len(name) < 10 else -1
        _require(rank in ranks and str(rank) == name, what)
        found[rank] = each
    return found


def signal_name(message: Mapping[str, Any]) -> str:
    """Return the name of the signal that an agent has heard."""
    found = message.get("signal")
    _require(found in [one.name for one in stop_flag.SIGNALS], "signal")
    return str(found)


def extensions(message: Mapping[str, Any]) -> str | None:
    """Return the key of compiled operators that a node needs."""
    key = message.get("extensions")
    _require(key is None or (isinstance(key, str) and _KEY.fullmatch(key)), "extensions")
    return key


def interfaces(message: Mapping[str, Any]) -> list[Interface]:
    """Return the interfaces over which a node may reach others, the best one first."""
    found = message.get("interfaces") or []
    _require(isinstance(found, list) and len(found) <= 100, "interfaces")
    for one in found:
        _require(isinstance(one, list) and len(one) == 3, "interfaces")
        _require(all(isinstance(part, str) and len(part) <= 64 for part in one), "interfaces")
        _require(_INTERFACE.fullmatch(one[0]), "interfaces")
    return [Interface(*one) for one in found]


def interfaces_down(message: Mapping[str, Any]) -> list[str]:
    """Return the fast interfaces of a node that are down."""
    found = message.get("down") or []
    _require(isinstance(found, list) and len(found) <= 100, "down")
    _require(all(isinstance(one, str) and _INTERFACE.fullmatch(one) for one in found), "down")
    return list(found)


def room(message: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return the bytes that a node's copy of an environment lacks, and that its disk has."""
    found = message.get("room")
    if found is None:
        return None
    _require(isinstance(found, list) and len(found) == 2, "room")
    return number(found[0], "room", _BYTES), number(found[1], "room", _BYTES)


def node_report(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a node's report of `hpcrun.run.check_in.node_report`."""
    found = message.get("health")
    _require(isinstance(found, dict) and found.keys() == {"findings", "gpus", "clock"}, "health")
    report: dict[str, Any] = dict(found or {})
    findings, gpus, clock = report["findings"], report["gpus"], report["clock"]
    _require(isinstance(findings, list) and len(findings) <= _FAILED_MOST, "health")
    for one in findings:
        _require(isinstance(one, list) and len(one) == 2 and one[0] in _HEALTH, "health")
        _require(isinstance(one[1], str) and len(one[1]) <= 400, "health")
    if gpus is not None:
        number(gpus, "health", range(1 << 16))
    _require(isinstance(clock, float) and 0 < clock < LAST_TIME, "health")
    return report


def link_answer(message: Mapping[str, Any]) -> tuple[str, int] | tuple[float, float, float] | str:
    """Return where a node listens, the rates and latency that it measured, or why it could not."""
    if "error" in message:
        return text(message["error"], "error")[:300]
    if message["type"] == "listening":
        return ip_address(message.get("address")), number(message.get("port"), "port", _PORTS)
    rates = [message.get(name) for name in ("sends", "receives", "latency")]
    for one in rates:
        _require(isinstance(one, float) and 0 <= one < 1e15, "rates")
    sends, receives, latency = (float(one or 0.0) for one in rates)
    return sends, receives, latency


def ip_address(value: Any) -> str:
    """Return an IPv4 or IPv6 address."""
    address = text(value, "address")
    try:
        socket.inet_pton(socket.AF_INET6 if ":" in address else socket.AF_INET, address)
    except (OSError, ValueError):
        raise BadMessage("address") from None
    return address


def directory(message: Mapping[str, Any], start: str) -> Path:
    """Return an agent's directory, whose name has the public name of this start of the job."""
    found = text(message.get("directory"), "directory")
    path = Path(found)
    sound = path.is_absolute() and ".." not in path.parts and str(path) == found
    _require(sound and "\0" not in found, "directory")
    _require(path.name.startswith(PREFIX + start), "directory")
    return path


def failed_files(message: Mapping[str, Any]) -> list[str]:
    """Return the files that an agent could not keep, and why."""
    found = message.get("failed")
    _require(isinstance(found, list), "failed")
    return [text(one, "failed") for one in list(found or ())[:_FAILED_MOST]]


def writes(message: Mapping[str, Any], ranks: Collection[int]) -> list[tuple[str, int]]:
    """Return the files that ranks of a node were seen to write, each with the rank."""
    found = message.get("files")
    _require(isinstance(found, dict) and len(found) <= _FILES_MOST, "files")
    _require(all(isinstance(each, list) for each in (found or {}).values()), "files")
    pairs = [(text(name, "files"), rank) for name, each in (found or {}).items() for rank in each]
    return [(name, number(rank, "files", ranks)) for name, rank in pairs[:_FILES_MOST]]


def progress(message: Mapping[str, Any], ranks: Collection[int]) -> dict[int, RankProgress]:
    """Return the progress of ranks, which are this node's."""
    found = {}
    for rank, fields in _by_rank(message.get("ranks"), ranks, "ranks").items():
        _require(isinstance(fields, dict) and fields.keys() == _PROGRESS, "ranks")
        for name, value in fields.items():
            # No calls here: thousands of ranks report every other second.
            if type(value) is int and value in _NUMBERS and name != "state":
                continue
            _require(name == "state" and isinstance(value, str) and len(value) == 1, name)
        _require(fields["phase"] in _PHASES, "phase")
        found[rank] = RankProgress(**fields)
    return found


def activity(message: Mapping[str, Any], ranks: Collection[int]) -> dict[int, RankActivity]:
    """Return the activity of ranks without a session, where it has changed."""

    return {
        rank: _counts(RankActivity, fields, "programs")
        for rank, fields in _by_rank(message.get("programs", {}), ranks, "programs").items()
    }


def traffic(message: Mapping[str, Any]) -> NodeTraffic | None:
    """Return what a node has moved; None if it does not say."""

    found = message.get("traffic")
    return None if found is None else _counts(NodeTraffic, found, "traffic")


def _counts(kind: type[_Counts], fields: Any, what: str) -> _Counts:
    """Return a dataclass of whole numbers and the letter of a state."""
    _require(isinstance(fields, dict) and fields.keys() == {*names(kind)}, what)
    for name, value in fields.items():
        if name == "state":
            _require(isinstance(value, str) and len(value) == 1, name)
        else:
            number(value, name, range(1 << 63))
    return kind(**fields)


def log_sizes(message: Mapping[str, Any], ranks: Collection[int]) -> dict[int, int]:
    """Return the sizes of logs that have grown."""
    found = _by_rank(message.get("logs"), ranks, "logs")
    return {rank: number(size, "logs", range(1 << 63)) for rank, size in found.items()}


def imported(message: Mapping[str, Any]) -> int | None:
    """Return the modules that a program whose steps are read has imported of slow packages."""
    found = message.get("imported")
    return None if found is None else number(found, "imported", _BYTES)


def link_trouble(message: Mapping[str, Any]) -> str | None:
    """Return why a node cannot reach the others."""
    found = message.get("fabric")
    return None if found is None else text(found, "fabric")


def stacks(message: Mapping[str, Any], ranks: Collection[int]) -> dict[int, str]:
    """Return the stacks of ranks."""
    found = _by_rank(message.get("ranks"), ranks, "ranks")
    _require(all(isinstance(one, str) for one in found.values()), "ranks")
    return found


def locks(message: Mapping[str, Any], ranks: Collection[int]) -> dict[int, str]:
    """Return the locks of builds that ended, which ranks wait for."""
    found = _by_rank(message.get("locks", {}), ranks, "locks")
    return {rank: text(path, "locks") for rank, path in found.items()}


def gone(message: Mapping[str, Any], ranks: Collection[int]) -> list[int]:
    """Return the ranks that had ended by themselves."""
    found = message.get("gone")
    _require(isinstance(found, list), "gone")
    return [number(rank, "gone", ranks) for rank in found or ()]


def ends(message: Mapping[str, Any], ranks: Collection[int]) -> dict[int, int | None]:
    """Return rank -> exit code of ranks that have ended; None where it left none."""
    found = _by_rank(message.get("ranks"), ranks, "ranks")
    codes = found.items()
    return {rank: None if code is None else number(code, "ranks", _CODES) for rank, code in codes}


def adapters(found: Any) -> dict[str, Any] | None:
    """Return a node's report of its links to the fabric; None if it has none."""
    if found is None:
        return None
    _require(
        isinstance(found, dict) and found.keys() == {"source", "ports", "findings"}, "adapters"
    )
    ports, findings = found["ports"], found["findings"]
    _require(found["source"] in ("environment", "profile", "node"), "adapters")
    _require(isinstance(ports, list) and len(ports) <= _PORTS_MOST, "adapters")
    for port in ports:
        _require(isinstance(port, list) and len(port) == 3, "adapters")
        _require(all(isinstance(part, str) and len(part) <= 100 for part in port), "adapters")
    _require(isinstance(findings, list) and len(findings) <= _FAILED_MOST, "adapters")
    for one in findings:
        _require(isinstance(one, dict) and {"kind", "message"} <= one.keys(), "adapters")
        _require(one.keys() <= {"port", "kind", "message"} and one["kind"] in KINDS, "adapters")
        _require(
            all(isinstance(part, str) and len(part) <= 400 for part in one.values()), "adapters"
        )
    return dict(found)


def ready(
    message: Mapping[str, Any], node: str, start: str, attempt: int, *, first: bool
) -> tuple[LaunchNode, int | None]:
    """Return a node that is prepared, and the rendezvous' port if it is the first.

    ``start`` is the public name of this start of the job, which the node's directory has.
    """
    found = message.get("node")
    _require(isinstance(found, dict), "node")
    fields: dict[str, Any] = dict(found or {})
    _require(fields.pop("name", None) == node, "name")
    scratch = text(fields.pop("scratch", None), "scratch")
    own = Path(scratch)
    _require(own.is_absolute() and ".." not in own.parts and str(own) == scratch, "scratch")
    _require("\0" not in scratch and own == NodePaths(own.parent).attempt(attempt), "scratch")
    _require(own.parent.name.startswith(PREFIX + start), "scratch")
    paths = ScratchPaths(own)
    _require(fields.pop("code", None) == str(paths.code), "code")
    operators = fields.pop("extensions", None)
    _require(operators in (None, str(paths.extensions)), "extensions")
    python = fields.pop("python", None)
    if python is not None:
        start_of_it = f"{own.parent.parent}/".replace("//", "/")
        path = text(python, "python")
        _require(path.startswith(start_of_it), "python")
        _require(_COPIED_PYTHON.fullmatch(path[len(start_of_it) :]), "python")
    interface = fields.pop("interface", None)
    _require(isinstance(interface, str) and _INTERFACE.fullmatch(interface), "interface")
    hca = fields.pop("hca", None)
    _require(hca is None or (isinstance(hca, str) and _ADAPTERS.fullmatch(hca)), "hca")
    links = adapters(fields.pop("adapters", None))
    ports = fields.pop("ports", None)
    if ports is not None:
        number(ports, "ports", range(1024, 1 << 16))
    address = ip_address(fields.pop("address", None))
    _require(not fields, "node")
    port = number(message.get("port"), "port", _PORTS) if first else None
    code = str(paths.code)
    where = (node, code, scratch, str(interface), address, hca, operators)
    return LaunchNode(*where, ports=ports, python=python, adapters=links), port

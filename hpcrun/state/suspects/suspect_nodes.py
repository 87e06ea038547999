"""The files of suspect nodes: ``UID.jsonl`` of each author, in a directory that a site shares.

Jobs record the nodes that failed them, people clear them, submissions read them::

    nodes = SuspectNodes.of(cluster, root)      # of the profile's block ``suspects``
    nodes.record("node07", "ib0 has no carrier", "interface")       # for ``suspects.days``
    reading = nodes.read()                      # .entries, .trusted, .problems; never raises
    nodes.clear(["node07"])                     # my own entries alone
    nodes.trust(["node07"])                     # my submissions use it, whatever others say

An author appends whole lines to a file of their own, so nobody locks or waits. A line has ``time``
and one of ``suspect``, ``clear`` and ``trust`` (the name of a node); those of ``suspect`` have
``reason``, ``kind`` and ``until`` too, those of ``trust`` ``until``.

The files of others are hostile: each is a regular file without other names, of the user whose
number its own name begins with, writable by nobody else, and bounded; all that is asked through its
descriptor. So an author speaks for nobody else, and only of names that Slurm could have.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpcrun.errors import HpcrunError
from hpcrun.fields import TEXT, TIME, Kinds, wrong
from hpcrun.state import files, permissions
from hpcrun.text import one_line, plural, shortened

DAYS = 2.0
# Whoever writes more of a day is not believed for longer.
MOST_DAYS = 30.0
DAY = 86_400.0
# Bytes of a file, names of a directory, files of an author and in all, nodes of an author.
MOST_BYTES, MOST_NAMES, MOST_OF_AUTHOR, MOST_FILES, MOST_NODES = 1 << 18, 20_000, 4, 1_000, 200
# Bytes from which an author's file is written anew, with what is still of use.
_LARGE = MOST_BYTES // 2
_MOST_REASON = 200
# Seconds by which clocks may differ.
_SKEW = 300.0

_FILE = re.compile(r"(0|[1-9][0-9]{0,9})(?:-[0-9a-f]{8})?\.jsonl", re.ASCII)
NODE_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,62}[A-Za-z0-9])?", re.ASCII)
_KIND = re.compile(r"[a-z][a-z_]{0,30}", re.ASCII)
_KINDS: Kinds = {
    **{"time": TIME, "until": TIME},
    **dict.fromkeys(("suspect", "clear", "trust", "reason", "kind"), TEXT),
}


@dataclass(frozen=True)
class SuspectEntry:
    """What one author says of a node."""

    node: str
    reason: str
    """One line, fit to be printed."""
    author: str
    """The login name of the file's owner."""
    uid: int
    when: float
    until: float
    """Seconds since the epoch; the entry is not used afterwards."""
    kind: str = "other"
    """What showed it: a kind of `hpcrun.policy.node_health`, ``node_failure``, ``doctor``, …"""

    @property
    def is_mine(self) -> bool:
        return self.uid == os.geteuid()

    @property
    def told(self) -> str:
        """``node07: ib0 has no carrier (by alice, until 2026-01-31 12:00)``."""
        until = time.strftime("%Y-%m-%d %H:%M", time.localtime(self.until))
        return f"{self.node}: {self.reason} (by {self.author}, until {until})"


@dataclass(frozen=True)
class SuspectReading:
    """What a record holds now."""

    entries: tuple[SuspectEntry, ...] = ()
    """Those that have not expired, the newest of each author and node; the newest first."""
    trusted: Mapping[str, float] = field(default_factory=dict)
    """Node -> until when this user trusts it, whatever others say."""
    problems: tuple[str, ...] = ()
    """What could not be used, in words that may be printed."""

    @property
    def used(self) -> tuple[SuspectEntry, ...]:
        """The entries of nodes that this user does not trust."""
        return tuple(one for one in self.entries if one.is_mine or one.node not in self.trusted)


class SuspectNodes:
    """A record of suspect nodes.

    Parameters
    ----------
    directory
        Where the authors' files are.
    days
        For how long an entry is used; others' are not used for longer than that either.
    shared
        Whether others write there too; without, ``directory`` is made where it is missing.
    """

    def __init__(self, directory: Path, days: float = DAYS, *, shared: bool = True) -> None:
        self.directory, self.shared = directory, shared
        self.days = min(max(days, 0.0), MOST_DAYS)

    @classmethod
    def of(cls, cluster: Mapping[str, Any], root: Path) -> SuspectNodes:
        """Return the record of a resolved cluster profile: its own, or the user's, of his root."""
        block = cluster.get("suspects") or {}
        directory, days = block.get("directory"), float(block.get("days") or DAYS)
        if directory:
            return cls(Path(directory), days)
        return cls(root / ".hpcrun" / "suspects", days, shared=False)

    def read(self, now: float | None = None) -> SuspectReading:
        """Return what the record holds; what is wrong with it is among the problems."""
        now = time.time() if now is None else now
        problems: list[str] = []
        entries: list[SuspectEntry] = []
        trusted: dict[str, float] = {}
        for uid, lines in self._files(problems):
            mine = uid == os.geteuid()
            if not (mine or self.shared):
                continue
            nodes, trust = _of_author(lines, now, self.days)
            author = one_line(permissions.user_name(uid))
            entries += [SuspectEntry(**one, author=author, uid=uid) for one in nodes.values()]
            trusted.update(trust if mine else {})
        entries.sort(key=lambda one: (-one.when, one.node, one.uid))
        return SuspectReading(tuple(entries), trusted, tuple(problems))

    def record(self, node: str, reason: str, kind: str, now: float | None = None) -> None:
        """Write that a node is suspect, from now on for `days`.

        Raises HpcrunError if it cannot be written, or is no node's name.
        """
        now = time.time() if now is None else now
        _check(node)
        kind = kind if _KIND.fullmatch(kind) else "other"
        line = {"suspect": node, "reason": _short(reason), "kind": kind}
        self._append([{"time": now, **line, "until": now + self.days * DAY}], now)

    def clear(self, nodes: Iterable[str] | None = None, now: float | None = None) -> list[str]:
        """Take back one's own entries, of all nodes with None; return the nodes that had one.

        What others say of a node is theirs: `trust` it, or ask them. Raises as `record`.
        """
        mine = {one.node for one in self.read(now).entries if one.is_mine}
        found = sorted(mine if nodes is None else mine.intersection(nodes))
        now = time.time() if now is None else now
        if found:
            self._append([{"time": now, "clear": node} for node in found], now)
        return found

    def trust(
        self, nodes: Iterable[str], days: float | None = None, now: float | None = None
    ) -> None:
        """Use nodes in one's own submissions, whatever others say, for ``days`` (None: `days`).

        An own entry that comes later is stronger. Raises as `record`.
        """
        now = time.time() if now is None else now
        until = now + min(self.days if days is None else days, MOST_DAYS) * DAY
        lines: list[dict[str, Any]] = []
        for node in nodes:
            _check(node)
            lines += [{"time": now, "clear": node}, {"time": now, "trust": node, "until": until}]
        self._append(lines, now)

    def problem(self) -> str | None:
        """Return why this user cannot write here, and who mends it; None if he can."""
        try:
            os.close(self._open_own())
        except OSError as error:
            return self._told(error)
        return None

    def _files(self, problems: list[str]) -> Iterable[tuple[int, bytes]]:
        """Yield the authors' numbers and bytes, this user's first."""
        try:
            names = self._names(problems)
        except FileNotFoundError:
            if self.shared:
                problems.append(self._told(FileNotFoundError()))
            return
        except OSError as error:
            problems.append(f"{self.directory} cannot be read: {error.strerror}")
            return
        numbers: dict[int, int] = {}
        for uid, name in names:
            numbers[uid] = numbers.get(uid, 0) + 1
            if numbers[uid] > MOST_OF_AUTHOR:
                continue
            try:
                data = _read(self.directory / name, uid)
            except FileNotFoundError:
                continue
            except OSError as error:
                problems.append(one_line(f"passed over: {error}"))
                continue
            yield uid, data

    def _names(self, problems: list[str]) -> list[tuple[int, str]]:
        """Return owners and names of the files that may be read, this user's first.

        Names that somebody else has taken come before any limit on their number.
        """
        found: list[tuple[int, str]] = []
        taken: list[tuple[int, str]] = []
        seen = 0
        with os.scandir(self.directory) as entries:
            for one in entries:
                seen += 1
                if seen > MOST_NAMES:
                    break
                if match := _FILE.fullmatch(one.name):
                    uid = permissions.owner(self.directory / one.name)
                    (found if uid == int(match[1]) else taken).append((int(match[1]), one.name))
        if taken:
            uid, name = min(taken)
            whose = permissions.user_name(permissions.owner(self.directory / name) or 0)
            others = f", and {len(taken) - 1} more" if len(taken) > 1 else ""
            problems.append(f"passed over: {self.directory / name}{others}: it is {whose}'s")
        mode = os.stat(self.directory).st_mode
        if self.shared and mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            problems.append(
                f"{self.directory}: every user may remove others' entries; `chmod +t` ends that"
            )
        if seen > MOST_NAMES or len(found) > MOST_FILES:
            problems.append(f"{self.directory} holds more than is read: some entries are not used")
        found.sort(key=lambda one: (one[0] != os.geteuid(), one))
        return found[:MOST_FILES]

    def _append(self, lines: list[dict[str, Any]], now: float) -> None:
        text = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
        try:
            descriptor = self._open_own()
            try:
                size = os.fstat(descriptor).st_size
                if size + len(text) > _LARGE:
                    self._write_anew(now)
                    os.close(descriptor)
                    descriptor = self._open_own()
                    size = os.fstat(descriptor).st_size
                if size and os.pread(descriptor, 1, size - 1) != b"\n":
                    text = b"\n" + text
                if os.write(descriptor, text) != len(text):
                    raise OSError("the disk is full")
            finally:
                os.close(descriptor)
        except OSError as error:
            raise HpcrunError(f"suspect nodes: {self._told(error)}") from None

    def _open_own(self) -> int:
        """Open this user's file to append, and make it where there is none.

        Somebody else may have taken its name, or given a file of this user's that name.
        """
        uid = os.geteuid()
        if not self.shared:
            self.directory.mkdir(parents=True, exist_ok=True)
        with os.scandir(self.directory) as entries:
            names = [one.name for _, one in zip(range(MOST_NAMES), entries, strict=False)]
        own = [n for n in names if (found := _FILE.fullmatch(n)) and int(found[1]) == uid]
        for name in sorted(n for n in own if permissions.owner(self.directory / n) == uid):
            with contextlib.suppress(OSError):
                return self._open(name, os.O_RDWR | os.O_APPEND)
        for name in (f"{uid}.jsonl", f"{uid}-{os.urandom(4).hex()}.jsonl"):
            with contextlib.suppress(FileExistsError):
                return self._open(name, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL)
        # Another job of this user's was faster.
        return self._open(f"{uid}.jsonl", os.O_RDWR | os.O_APPEND)

    def _open(self, name: str, flags: int) -> int:
        path = self.directory / name
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
        try:
            _check_owner(path, descriptor, os.geteuid())
            if flags & os.O_CREAT:
                # Others read it, whatever the umask.
                os.fchmod(descriptor, 0o644)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def _write_anew(self, now: float) -> None:
        """Write the file with what is still of use alone."""
        uid = os.geteuid()
        nodes: dict[str, dict[str, Any]] = {}
        trusted: dict[str, float] = {}
        for author, lines in self._files([]):
            if author == uid:
                nodes, trusted = _of_author(lines, now, MOST_DAYS)
                break
        text = [
            {"time": one["when"], "suspect": one["node"], "reason": one["reason"]}
            | {"kind": one["kind"], "until": one["until"]}
            for one in nodes.values()
        ]
        text += [{"time": now, "trust": node, "until": until} for node, until in trusted.items()]
        path = next((self.directory / name for author, name in self._names([]) if author == uid))
        files.write_bytes(path, b"".join(json.dumps(line).encode() + b"\n" for line in text))
        path.chmod(0o644)

    def _told(self, error: OSError) -> str:
        key = "suspects.directory in the cluster profile"
        if isinstance(error, FileNotFoundError) and not self.directory.is_dir():
            return (
                f"{self.directory} is not there; an administrator makes it "
                f"(mkdir -m 1777 {self.directory}), or name another in {key}"
            )
        if isinstance(error, PermissionError) and not os.access(self.directory, os.W_OK):
            who = "every user of it, or their group, needs to write there (chmod 1777)"
            return f"{self.directory} cannot be written: {who}; {key} names it"
        return one_line(f"{self.directory} cannot be written: {error.strerror or error}")


def _check(node: str) -> None:
    if not NODE_NAME.fullmatch(node):
        raise HpcrunError(f"{shortened(one_line(node), 80)!r} is not the name of a node")


def _short(reason: str) -> str:
    return shortened(one_line(reason.strip()), _MOST_REASON) or "no reason given"


def _check_owner(path: Path, descriptor: int, uid: int) -> int:
    """Return the size of an author's file; raise Refused for what somebody else may have made."""
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        raise files.Refused(path, "not a regular file")
    if found.st_uid != uid:
        raise files.Refused(path, f"it is {permissions.user_name(found.st_uid)}'s")
    if found.st_nlink > 1:
        raise files.Refused(path, "it has another name too")
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise files.Refused(path, "others may write to it")
    return found.st_size


def _read(path: Path, uid: int) -> bytes:
    """Return an author's file; raise Refused unless it is this author's alone, and bounded."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    descriptor = os.open(path, flags)
    try:
        size = _check_owner(path, descriptor, uid)
        if size > MOST_BYTES:
            limit = plural(MOST_BYTES, "byte")
            raise files.Refused(path, f"{size} bytes, and such a file has at most {limit}")
        return os.pread(descriptor, MOST_BYTES, 0)
    finally:
        os.close(descriptor)


def _of_author(
    data: bytes, now: float, days: float
) -> tuple[dict[str, dict[str, Any]], dict[str, float]]:
    """Return what one author says now: node -> fields of its entry, and node -> trusted until."""
    nodes: dict[str, dict[str, Any]] = {}
    trusted: dict[str, float] = {}
    for record in files.objects(data.split(b"\n")):
        line = {key: value for key, value in record.items() if value is not None}
        if wrong(line, _KINDS, ("time",)) or float(line["time"]) > now + _SKEW:
            continue
        when, until = float(line["time"]), float(line.get("until") or 0.0)
        named = [line[key] for key in ("suspect", "clear", "trust") if key in line]
        if len(named) != 1 or not NODE_NAME.fullmatch(named[0]):
            continue
        node = named[0]
        nodes.pop(node, None)
        if "suspect" in line:
            trusted.pop(node, None)
            until = min(until, when + days * DAY)
            kind = line.get("kind", "")
            kind = kind if _KIND.fullmatch(kind) else "other"
            own = {"node": node, "reason": _short(line.get("reason", "")), "kind": kind}
            if until > now:
                nodes[node] = {**own, "when": when, "until": until}
        elif "trust" in line:
            until = min(until, when + MOST_DAYS * DAY)
            trusted |= {node: until} if until > now else {}
    newest = sorted(nodes.values(), key=lambda one: one["when"])[-MOST_NODES:]
    return {one["node"]: one for one in newest}, trusted

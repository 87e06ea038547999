"""Recorded experiments to be broken, and the command line called in process beside them."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import functools
import io
import json
import os
import re
import shutil
import socket
import sys
import tarfile
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcrun.state.spec.experiment import Spec
from tests.frozen.desk import ARCHIVE, NOW

# The experiment whose rows a broken one must not touch.
BYSTANDER = "doomed"
LAST_LINE = "step 64"
# What begins the key of a value of a spec.
_SPEC = {field.name for field in dataclasses.fields(Spec)} - {"name"}
# The others, and how often each is taken: large ones take longer.
VICTIMS = {"torn-drill": 6, "after": 6, "half": 1, "study": 2, "measure": 2}
# Ids that may be passed to Slurm, joined by commas.
_IDS = re.compile(r"\d{1,19}(_\d{1,10})?(,\d{1,19}(_\d{1,10})?)*")
# Tags and notes, which the recorded experiments have none of.
_SAID: tuple[dict[str, Any], ...] = (
    {"time": 1.7e9, "runs": [0], "add": ["good", "v1.2"]},
    {"time": 1.7e9 + 1, "runs": None, "add": ["all"], "remove": ["v1.2"]},
    {"time": 1.7e9 + 2, "runs": [0, 1], "note": "diverged after the bump"},
    {"time": 1.7e9 + 3, "runs": [1], "clear": True, "note": "it was the data"},
)
# All control characters but tabs and the ends of lines.
_CONTROL = re.compile(r"(?!\r\n)[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class Finding(Exception):
    """A promise that was not kept: its class, and what was seen."""

    def __init__(self, kind: str, detail: str = "") -> None:
        super().__init__(f"{kind}: {detail}" if detail else kind)
        self.kind = kind


@dataclass(frozen=True)
class Answer:
    """The output and the end of a command."""

    code: int
    out: str
    err: str


class World:
    """Roots of two experiments each: one to be broken, and a bystander.

    It changes this process for good (clock, environment, Slurm's client), which is therefore one of
    its own.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = Path(os.path.realpath(directory))
        with tarfile.open(ARCHIVE) as archive:
            archive.extractall(self.directory, filter="data")
        for victim in VICTIMS:
            for name in (victim, BYSTANDER):
                source = self.directory / "root" / name
                shutil.copytree(source, self.directory / "roots" / victim / name)
            said = self.directory / "roots" / victim / victim / "annotations" / "login-0.jsonl"
            said.parent.mkdir()
            said.write_text("".join(json.dumps(record) + "\n" for record in _SAID))
        self.slurm = {
            name: (self.directory / f"{name}.answer").read_text() for name in ("squeue", "sacct")
        }
        self.specs = self.directory / "specs"
        self.answers = dict(self.slurm)
        self._ticks = 0
        self._rows: dict[tuple[str, ...], str] = {}
        self._settle()

    def _settle(self) -> None:
        """Make this process one whose commands depend on their arguments and files alone."""
        for name in [name for name in os.environ if name.startswith(("HPCRUN_", "SLURM_"))]:
            del os.environ[name]
        home = self.directory / "home"
        home.mkdir()
        os.environ.update(
            HOME=str(home),
            USER="ada",
            LOGNAME="ada",
            PATH="/nowhere",
            TZ="UTC",
            COLUMNS="100",
            HPCRUN_STORAGE="local",
            # Slurm's last answers are not kept: no case may depend on the one before.
            XDG_CACHE_HOME="/dev/null/none",
        )
        time.tzset()
        time.time = lambda: NOW
        atexit.register = lambda function, *_, **__: function  # type: ignore[assignment]
        traceback.print_exc = self._note_bug  # type: ignore[assignment]
        _keep_templates()
        from hpcrun.slurm import client

        client.command = self._slurm
        os.chdir(self.specs)

    def _note_bug(self, *_: Any, **__: Any) -> None:
        self._bug = sys.exc_info()[1]

    def _slurm(self, argv: Sequence[str], *, timeout: float | None = None) -> str:
        """Stand in for Slurm's commands; reading ones alone may be called, about job ids."""
        if argv[0] not in ("squeue", "sacct", "scontrol", "sinfo"):
            raise Finding("a command of Slurm that acts was called", " ".join(argv)[:200])
        for word in argv:
            name, _, value = word.partition("=")
            if name == "--jobs" and not _IDS.fullmatch(value):
                raise Finding("Slurm was asked about what is no job id", word[:200])
            if "\x00" in word:
                raise Finding("Slurm was passed a NUL", repr(word)[:200])
        return self.answers.get(argv[0], "")

    def call(self, *argv: str | Path, root: Path | None = None) -> Answer:
        """Type a command; raise Finding for a traceback or a control character in its output."""
        from hpcrun.cli.main import main

        out, err = (
            io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in "12"
        )
        arguments = [*map(str, argv), *(() if root is None else ("--root", str(root)))]
        self._bug: BaseException | None = None
        before = sys.stdin, sys.stdout, sys.stderr, sys.argv
        sys.stdin, sys.stdout, sys.stderr = io.StringIO(), out, err
        sys.argv = ["hpcrun", *arguments]
        code: Any = None
        try:
            main(arguments)
        except SystemExit as ended:
            code = ended.code
        finally:
            sys.stdin, sys.stdout, sys.stderr, sys.argv = before
        if self._bug is not None:
            raise self._bug
        answer = Answer(int(code or 0), *(one.buffer.getvalue().decode() for one in (out, err)))
        for stream, text in (("stdout", answer.out), ("stderr", answer.err)):
            if found := _CONTROL.search(text):
                at = max(0, found.start() - 40)
                raise Finding(f"a control character on {stream}", repr(text[at : found.end() + 40]))
        return answer

    def json_of(self, answer: Answer) -> Any:
        """Read a command's JSON strictly."""

        def refuse(constant: str) -> Any:
            raise Finding("NaN or infinity in --json", constant)

        try:
            return json.loads(answer.out, parse_constant=refuse)
        except ValueError as error:
            raise Finding("--json printed no JSON", f"{error}: {answer.out[:200]!r}") from None

    @functools.cache  # noqa: B019 - there is one world
    def files(self, victim: str, pattern: str) -> list[Path]:
        """Return the files of an unbroken experiment that a pattern matches."""
        return sorted((self.root(victim) / victim).glob(pattern))

    def root(self, victim: str) -> Path:
        return self.directory / "roots" / victim

    def bystanders(self, victim: str, argv: tuple[str, ...], answer: Answer) -> None:
        """Check that the rows of the bystander are those that an unbroken neighbour leaves it."""
        key = (victim, *argv)
        if key not in self._rows:
            raise AssertionError(f"no rows are known for {key}")
        rows = _rows(argv, answer.out)
        if rows != self._rows[key]:
            said = answer.err[-300:] or answer.out[-300:]
            raise Finding(
                f"a broken experiment {'changed' if rows else 'cost'} another one's rows",
                f"{' '.join(argv)}: {said!r}",
            )

    def learn(self, victim: str, argv: tuple[str, ...]) -> None:
        """Remember the bystander's rows beside an unbroken neighbour."""
        if (victim, *argv) in self._rows:
            return
        answer = self.call(*argv, root=self.root(victim))
        rows = _rows(argv, answer.out)
        assert len(rows) > 2, (argv, answer)
        self._rows[(victim, *argv)] = rows

    @contextlib.contextmanager
    def broken(self, path: Path, data: bytes | str) -> Iterator[None]:
        """Put bytes, or an odd kind of file by its name, in place of a file; put it back after."""
        before = path.read_bytes() if path.is_file() else None
        self._put(path, data)
        try:
            yield
        finally:
            remove(path)
            if before is not None:
                self._put(path, before)

    def _put(self, path: Path, data: bytes | str) -> None:
        if isinstance(data, str):
            remove(path)
            KINDS[data](path)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        # What is kept by a file's time must never take one case's file for another's.
        self._ticks += 1
        os.utime(path, ns=(int(NOW * 1e9) - self._ticks,) * 2)


def _keep_templates() -> None:
    """Compile each template once, not for each page: they stay the same."""
    from jinja2 import Environment

    compiled: dict[str, Any] = {}
    compile_one = Environment.compile

    def once(self: Environment, source: str, *arguments: Any, **options: Any) -> Any:
        if source not in compiled:
            compiled[source] = compile_one(self, source, *arguments, **options)
        return compiled[source]

    Environment.compile = once  # type: ignore[method-assign, assignment]


def remove(path: Path) -> None:
    """Remove whatever lies at a path."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _socket(path: Path) -> None:
    # The name of a socket is short: bind it where the path is.
    here = os.open(path.parent, os.O_RDONLY)
    try:
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(f"/proc/self/fd/{here}/{path.name}"[:100])
    finally:
        os.close(here)


def _sparse(path: Path) -> None:
    with open(path, "wb") as stream:
        stream.truncate(30 << 30)


def _link_to_itself(path: Path) -> None:
    path.symlink_to(path.name)


# Kinds of files that a reader may meet in place of its own.
KINDS = {
    "nothing": lambda path: None,
    "a directory": lambda path: path.mkdir(parents=True),
    "a FIFO": lambda path: os.mkfifo(path),
    "a socket": _socket,
    "a link to itself": _link_to_itself,
    "a link to nothing": lambda path: path.symlink_to("/nonexistent/x"),
    "a link to /dev/zero": lambda path: path.symlink_to("/dev/zero"),
    "a link to a directory": lambda path: path.symlink_to("/"),
    "a sparse file of 30 GB": _sparse,
}


def _rows(argv: tuple[str, ...], text: str) -> str:
    """Return a command's rows of the bystander; in text, where columns vary, that it has some."""
    if "json" not in argv and ("--json" not in argv or "logs" in argv):
        # Lines of one experiment alone have no name before them.
        return "some" if BYSTANDER in text or ("logs" in argv and LAST_LINE in text) else ""
    try:
        found = json.loads(text)
    except ValueError:
        return ""
    rows = found if isinstance(found, list) else found.get("runs", [])
    mine = [row for row in rows if BYSTANDER in _experiments(row)]
    # `results` has the columns of all in each row, and those of values in which all that are shown
    # differ: its own values stand in others of its columns, or in none.
    kept = [
        {
            key: value
            for key, value in row.items()
            if value is not None and ("results" not in argv or key.partition(".")[0] not in _SPEC)
        }
        for row in mine
    ]
    return json.dumps(kept) if kept else ""


def _experiments(row: dict[str, Any]) -> list[str]:
    """Return the experiment of a row, by whichever key that command names it."""
    return [str(row.get(name)).partition("/")[0] for name in ("experiment", "name", "run")]

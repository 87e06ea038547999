"""A desk that is the same on every machine: an old tree of experiments, a clock that stands still.

What a command says there depends on the command alone, so that it can be compared with what was
recorded. Only the command line is used: nothing here imports a module of hpcrun but its entry.
"""

from __future__ import annotations

import base64
import contextlib
import gc
import hashlib
import io
import json
import os
import pwd
import re
import shutil
import sys
import tarfile
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from hpcrun import __version__
from hpcrun.cli.main import main

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parents[1]
ARCHIVE = HERE / "root.tar.gz"
EXPECTED = HERE / "expected"

# A while after the runs of the tree ended.
NOW = 1_795_413_600.0
HOST = "desk"

# Slurm's clients answer what they answered when the tree was recorded, whatever they are asked.
_ANSWER = '#!/bin/sh\ncat "$(dirname "$0")/{name}.answer"\n'
_REFUSAL = "#!/bin/sh\necho '{name}: error: there is no Slurm here' >&2\nexit 1\n"


@dataclass(frozen=True)
class Case:
    """A command, and where it is typed.

    Attributes
    ----------
    argv
        Its words; ``@`` stands for the desk's directory.
    zone
        The time zone of the person who types it.
    root
        A directory of the desk: ``root`` (the old tree), ``empty`` or ``absent``.
    option
        Whether the root is given by ``--root``; otherwise by HPCRUN_ROOT.
    within
        The directory of the desk in which it is typed.
    """

    argv: tuple[str, ...]
    zone: str = "UTC"
    root: str = "root"
    option: bool = False
    within: str = "specs"
    environment: dict[str, str] = field(default_factory=dict, compare=False)

    @property
    def name(self) -> str:
        """What its file of expectations is called."""
        words = " ".join(self.argv)
        words += "" if self.zone == "UTC" else f" in {self.zone}"
        words += "" if self.root == "root" else f" of {self.root}"
        words += " with --root" if self.option else ""
        words += "" if self.within == "specs" else f" within {self.within}"
        words += "".join(f" {key}={value}" for key, value in self.environment.items())
        words = words.replace("<=", " le ").replace("<", " lt ").replace(">", " gt ")
        name = re.sub(r"[^A-Za-z0-9.=,-]+", "_", words).strip("_").lstrip("-") or "nothing"
        if len(name) > 90:
            name = f"{name[:80]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
        return name


@dataclass(frozen=True)
class Answer:
    """What a command said, and how it ended."""

    code: int
    out: str
    err: str

    def text(self, case: Case) -> str:
        """The content of a file of expectations."""
        shown = " ".join(case.argv)
        parts = [f"$ hpcrun {shown}", f"exit code {self.code}"]
        parts += ["=== stdout", self.out.rstrip("\n"), "=== stderr", self.err.rstrip("\n")]
        return "\n".join(parts) + "\n"


def _be(user: str, patch: pytest.MonkeyPatch) -> None:
    """Make all files appear as ada's, and this process as this user's."""
    ada = os.getuid()
    patch.setattr(pwd, "getpwuid", lambda uid: _Account("ada" if uid == ada else "bob"))
    patch.setattr(os, "geteuid", lambda: ada if user == "ada" else ada + 1)


class _Account(NamedTuple):
    pw_name: str


class Desk:
    """Directories of a person: specs, the old tree of experiments, a home, and Slurm's clients."""

    def __init__(self, directory: Path) -> None:
        self.directory = Path(os.path.realpath(directory))
        for name in ("home", "bin", "empty", "out"):
            (self.directory / name).mkdir(parents=True)
        with tarfile.open(ARCHIVE) as archive:
            archive.extractall(self.directory, filter="data")
        for name in ("squeue", "sacct"):
            self._client(name, _ANSWER)
            (self.directory / "bin" / f"{name}.answer").touch()
            recorded = self.directory / f"{name}.answer"
            if recorded.exists():
                recorded.replace(self.directory / "bin" / recorded.name)
        for name in ("sbatch", "scontrol", "scancel", "sinfo", "srun"):
            self._client(name, _REFUSAL)

    def _client(self, name: str, text: str) -> None:
        path = self.directory / "bin" / name
        path.write_text(text.format(name=name))
        path.chmod(0o755)

    def run(self, case: Case) -> Answer:
        """Type a command; what differs between machines is written as the same words."""
        shutil.rmtree(self.directory / "home", ignore_errors=True)
        (self.directory / "home").mkdir()
        argv = [word.replace("@", str(self.directory)) for word in case.argv]
        root = self.directory / case.root
        if case.option:
            argv += ["--root", str(root)]
        with self._place(case, None if case.option else root), _streams() as (out, err):
            code = _call(argv)
        return Answer(
            code, *(self.same_everywhere(text.getvalue().decode()) for text in (out, err))
        )

    @contextlib.contextmanager
    def _place(self, case: Case, root: Path | None) -> Iterator[None]:
        variables = {
            "PATH": f"{self.directory / 'bin'}:/usr/bin:/bin",
            "HOME": str(self.directory / "home"),
            "USER": "ada",
            "LOGNAME": "ada",
            "LANG": "C.UTF-8",
            "TZ": case.zone,
            "COLUMNS": "100",
            "HPCRUN_STORAGE": "local",
            "HPCRUN_PROGRESS": "0",
            **({} if root is None else {"HPCRUN_ROOT": str(root)}),
            **case.environment,
        }
        thresholds = gc.get_threshold()
        with pytest.MonkeyPatch.context() as patch:
            for name in set(os.environ) - set(variables):
                patch.delenv(name)
            for name, value in variables.items():
                patch.setenv(name, value)
            patch.chdir(self.directory / case.within)
            patch.setattr(sys, "argv", ["hpcrun", *case.argv])
            patch.setattr(time, "time", lambda: NOW)
            machine = os.uname_result(("Linux", HOST, "6.1.0", "#1", "x86_64"))
            patch.setattr(os, "uname", lambda: machine)
            _be(variables["USER"], patch)
            patch.setattr("socket.gethostname", lambda: HOST)
            time.tzset()
            try:
                yield
            finally:
                gc.set_threshold(*thresholds)
        time.tzset()

    def same_everywhere(self, text: str) -> str:
        """The text, with words in place of paths and versions of this machine."""
        text = text.replace(str(self.directory), "/desk").replace(sys.executable, "PYTHON")
        text = text.replace(str(CHECKOUT), "/checkout")
        # A module that a script starts is found by the hpcrun.zip beside that script.
        text = re.sub(r"-m hpcrun(\.\w+)+", "-m hpcrun.MODULE", text)
        return re.sub(rf"\bhpcrun {re.escape(__version__)}", "hpcrun VERSION", text)

    def page(self, path: Path) -> str:
        """A report, with its data readable and its scripts and styles as their digests."""
        html = path.read_text()

        def script(found: re.Match[str]) -> str:
            tag, body = found.groups()
            if 'id="data"' in tag:
                data: Any = json.loads(zlib.decompress(base64.b64decode(body)))
                return f"{tag}\n{json.dumps(data, indent=1)}\n"
            return f"{tag}{_digest(body.encode())}"

        html = re.sub(
            r"(<(?:script|style)[^>]*>)(.*?)(?=</(?:script|style)>)", script, html, flags=re.S
        )
        return self.same_everywhere(html)

    def members(self, path: Path) -> str:
        """An exported archive: its members in their order, the text of those that it wrote anew."""
        lines, texts = [], []
        with tarfile.open(path) as archive:
            for member in archive.getmembers():
                stream = archive.extractfile(member)
                data = stream.read() if stream is not None else b""
                about = f"{member.mode:o} {member.uid} {member.gid} {member.mtime:.0f}"
                lines.append(f"{_digest(data)} {len(data):>7} {about} {member.name}")
                name = member.name.partition("/")[2]
                if name in ("README.txt", "results.csv", "versions.json", "SHA256SUMS"):
                    texts.append(f"=== {member.name}\n{data.decode()}")
        return self.same_everywhere("\n".join([*lines, *texts]))

    def names(self, directory: str) -> list[str]:
        """All that lies under a directory of the desk."""
        found = (self.directory / directory).rglob("*")
        return sorted(str(path.relative_to(self.directory)) for path in found)

    def contents(self, directory: str) -> dict[str, str]:
        """The digest of each file under a directory of the desk, by its name."""
        paths = {name: self.directory / name for name in self.names(directory)}
        return {name: _digest(path.read_bytes()) for name, path in paths.items() if path.is_file()}


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def _call(argv: list[str]) -> int:
    try:
        main(argv)
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    raise AssertionError("the command line came back")


@contextlib.contextmanager
def _streams() -> Iterator[tuple[io.BytesIO, io.BytesIO]]:
    """Standard streams that are no terminal, and what is written to them."""
    out, err = io.BytesIO(), io.BytesIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdin", io.StringIO())
        for name, raw in (("stdout", out), ("stderr", err)):
            stream = io.TextIOWrapper(raw, encoding="utf-8", write_through=True)
            patch.setattr(sys, name, stream)
            # Kept: its end would close what was written.
            _KEPT.append(stream)
        yield out, err
        sys.stdout.flush()
        sys.stderr.flush()


_KEPT: list[io.TextIOWrapper] = []

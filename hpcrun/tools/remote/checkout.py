"""The code of this machine that a command on a login node needs, as ``submit`` would freeze it."""

from __future__ import annotations

import hashlib
import os
import socket
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from hpcrun.compile import compile_spec
from hpcrun.compile.freeze import freeze
from hpcrun.compile.source import git
from hpcrun.errors import HpcrunError, UsageError
from hpcrun.state import layout
from hpcrun.submission.code import code_files, snapshot
from hpcrun.submission.code.code_files import CodeScope
from hpcrun.text import Say, size
from hpcrun.tools.remote.login_node import LoginNode

_LONG = 300.0
# What comes back of a checkout: specs and profiles, and the starter of `hpcrun init`.
_COME_BACK = (".yaml", ".yml", ".sh", "spec.schema.json", "train.py")


@dataclass(frozen=True)
class Checkout:
    """The code around a spec, or around the working directory."""

    scope: CodeScope
    """The part of it that is brought."""

    @property
    def top(self) -> Path:
        return self.scope.root

    @property
    def place(self) -> dict[str, str]:
        """Return what names it on the login node: this machine's directory, and its last part."""
        told = f"{_machine()}\0{os.getuid()}\0{self.top}"
        return {"key": hashlib.sha256(told.encode()).hexdigest()[:16], "name": self.top.name}

    def inside(self, path: Path) -> str:
        """Return a path relative to the top; "." for what lies elsewhere."""
        found = os.path.relpath(path.resolve(), self.top)
        return "." if found.startswith("..") else found

    def bring(self, node: LoginNode, say: Say, *, has_git: bool) -> str:
        """Make its copy on the login node what it is here, and return where that is.

        What is the same already stays.

        Raises what `snapshot.freeze` raises.
        """
        there = node.ask("look", **self.place)
        with tempfile.TemporaryDirectory(prefix="hpcrun-") as directory:
            taken = snapshot.freeze(self.scope, Path(directory))
            for note in taken.notes:
                say(note)
            commit = self._commit(taken.git, node, say, has_git=has_git)
            if there["digest"] != taken.digest or (there["commit"] and not commit):
                data = taken.archive.read_bytes()
                say(f"bringing {self.top}: {taken.files} files, {size(len(data))}")
                node.ask("bring", data, digest=taken.digest, commit=commit, **self.place)
            elif there["commit"] == commit:
                return str(there["top"])
        if commit is not None:
            self._bring_commit(node, say, commit, taken.git or {}, known=there["commit"] == commit)
        return str(there["top"])

    def _commit(
        self, state: Mapping[str, Any] | None, node: LoginNode, say: Say, *, has_git: bool
    ) -> str | None:
        """Return the commit that is recorded there; None outside git, and where it cannot be."""
        if state is None or state["commit"] is None:
            return None
        if not has_git:
            say(f"{node.name} has no git on its PATH: no commit is recorded")
            return None
        if git.top_level(self.top) != self.top:
            say(f"code.root, {self.top}, is a part of its checkout: no commit is recorded")
            return None
        return str(state["commit"])

    def _bring_commit(
        self, node: LoginNode, say: Say, commit: str, state: Mapping[str, Any], *, known: bool
    ) -> None:
        objects = b"" if known else _objects(self.top, commit)
        if objects is None:
            say(f"{self.top}: git does not give the objects of {commit[:12]}: it is not recorded")
            return
        deleted = git.ask(self.top, "ls-files", "-d", "-z", timeout=_LONG)
        names = os.fsdecode(deleted.stdout).split("\0") if deleted else []
        state = {"commit": commit, "branch": state["branch"], "deleted": list(filter(None, names))}
        node.ask("set_commit", objects, **state, **self.place)

    def take(self, node: LoginNode, say: Say) -> None:
        """Write here what `init` and ``--save`` write there, unless other files are here."""
        written = node.ask("written", endings=_COME_BACK, **self.place)["files"]
        for name, text in sorted(written.items()):
            path = Path(os.path.normpath(self.top / str(name)))
            parts = path.parts[len(self.top.parts) :]
            strange = not path.is_relative_to(self.top) or any(one[:1] == "." for one in parts)
            if strange or not path.name.endswith(_COME_BACK):
                continue
            if path.is_symlink() or any(one.is_symlink() for one in path.parents):
                say(f"{path} is behind a link, and stays as it is")
            elif not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(str(text))
                say(f"brought back: {path}")
            elif path.read_text("utf-8", "replace") != text:
                say(f"{node.name} has written another {path}; the one here stays as it is")


def around(spec: Path | None, overrides: tuple[str, ...], sweeps: tuple[str, ...]) -> Checkout:
    """Return the checkout of a spec, or of the working directory where there is none.

    Raises UsageError where it would be a home directory as a whole.
    """
    here = (spec.resolve().parent if spec is not None else Path.cwd()).resolve()
    if spec is not None:
        try:
            compiled = compile_spec(spec, overrides, sweeps)
            experiment = layout.experiment(compiled.root, compiled.name)
            return Checkout(code_files.scope(freeze(compiled), experiment))
        except HpcrunError:
            # The login node tells what is wrong with it, for what is there.
            pass
    top = git.top_level(here) or here
    if top in (Path(top.anchor), Path.home()):
        raise UsageError(
            f"the code to bring would be all of {top}",
            hint="put the experiment in a directory of its own, and type the command there",
        )
    code = _code_block(spec) if spec is not None else {}
    required = [spec.resolve().relative_to(top).as_posix()] if spec is not None else []
    exclude, include = (_words(code.get(name)) for name in ("exclude", "include"))
    return Checkout(CodeScope(top, exclude=exclude, include=include, required=required))


def _words(value: object) -> list[str]:
    return [one for one in value if isinstance(one, str)] if isinstance(value, list) else []


def _code_block(spec: Path) -> dict[str, Any]:
    """Return a spec's ``code``, as far as it can be read."""
    try:
        read = yaml.safe_load(spec.read_text("utf-8", "replace"))
    except (OSError, yaml.YAMLError, RecursionError, ValueError):
        return {}
    found = read.get("code") if isinstance(read, dict) else None
    return found if isinstance(found, dict) else {}


def _objects(top: Path, commit: str) -> bytes | None:
    """Return the objects of a commit without its history, as git packs them; None if it cannot."""
    listed = git.ask(top, "rev-list", "--objects", "--max-count=1", commit, timeout=_LONG)
    if listed is None or listed.returncode:
        return None
    names = b"".join(line.split(b" ")[0] + b"\n" for line in listed.stdout.splitlines())
    packed = git.ask(top, "pack-objects", "-q", "--stdout", given=names, timeout=_LONG)
    return None if packed is None or packed.returncode else packed.stdout


def _machine() -> str:
    for path in ("/etc/machine-id", "/var/lib/dbus/machine-id"):
        try:
            return Path(path).read_text().strip()
        except OSError:
            continue
    return socket.gethostname()

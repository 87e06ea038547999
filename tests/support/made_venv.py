"""Virtual environments with packages of a test's own, made without the network."""

from __future__ import annotations

import json
import os
import shutil
import sys
import venv
from pathlib import Path


class MadeVenv:
    """A virtual environment of the tests' Python, empty at first."""

    def __init__(self, directory: Path) -> None:
        venv.EnvBuilder(symlinks=True).create(directory)
        self.directory = directory
        self.python = str(directory / "bin" / "python")
        short = "python{}.{}".format(*sys.version_info[:2])
        self.site = directory / "lib" / short / "site-packages"

    def package(self, name: str, version: str, source: str = "") -> Path:
        """Install a package of one module in place of what there is of that name."""
        self.remove(name)
        place = self.site / name
        place.mkdir()
        (place / "__init__.py").write_text(f"VERSION = {version!r}\n{source}")
        self.record(name, version)
        return place

    def record(self, name: str, version: str, editable: Path | None = None) -> None:
        """Write what an installer records of a package."""
        record = self.site / f"{name}-{version}.dist-info"
        record.mkdir()
        (record / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n")
        if editable is not None:
            told = {"url": f"file://{editable}", "dir_info": {"editable": True}}
            (record / "direct_url.json").write_text(json.dumps(told))

    def remove(self, name: str) -> None:
        shutil.rmtree(self.site / name, ignore_errors=True)
        for old in self.site.glob(f"{name}-*.dist-info"):
            shutil.rmtree(old)

    def script(self, name: str, text: str, start: str | None = None) -> Path:
        """Write a program that starts the environment's Python."""
        path = self.directory / "bin" / name
        path.write_text(f"{start or f'#!{self.python}'}\n{text}")
        path.chmod(0o755)
        return path

    def give(self, uid: int) -> None:
        """Have it be another user's."""
        for parent, directories, names in os.walk(self.directory):
            for each in (".", *directories, *names):
                os.chown(Path(parent, each), uid, uid, follow_symlinks=False)

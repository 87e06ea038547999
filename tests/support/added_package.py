"""An installed package that offers entries to hpcrun, as pip would leave it in a directory."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from hpcrun import extensions
from hpcrun.extensions import Registry


def install(
    directory: Path,
    package: str,
    group: str,
    entries: str,
    module: str = "",
    *,
    more: Mapping[str, bytes] | None = None,
    editable: bool = False,
) -> None:
    """Write a package of one module, with the lines of its entry points, and further files."""
    metadata = directory / f"{package}-1.0.dist-info"
    metadata.mkdir(parents=True)
    origin = {"url": "file:///src", "dir_info": {"editable": editable}}
    about = f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n"
    files: dict[str, bytes] = {
        f"{metadata.name}/METADATA": about.encode(),
        f"{metadata.name}/entry_points.txt": f"[{group}]\n{entries}\n".encode(),
        f"{metadata.name}/direct_url.json": json.dumps(origin).encode(),
        f"{package}.py": module.encode(),
        **(more or {}),
    }
    for name, content in files.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_bytes(content)
    record = "".join(f"{name},,\n" for name in [*files, f"{metadata.name}/RECORD"])
    (metadata / "RECORD").write_text(record)


def on_path(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Have this process find the packages of a directory, until a fixture ends."""
    monkeypatch.syspath_prepend(str(directory))
    forget()
    yield directory
    forget()


def forget() -> None:
    """Have the kinds look again at what is installed; they look once in a process."""
    for kind in vars(extensions).values():
        if isinstance(kind, Registry):
            vars(kind).pop("_offered", None)

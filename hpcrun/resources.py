"""The files that ship with hpcrun: ``templates``, ``configs`` and ``jobs``."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def directory(name: str) -> Path:
    """Return the directory of shipped ``templates``, ``configs`` or ``jobs``.

    In a checkout they lie beside the package, in an installed wheel inside it.
    """
    installed = _PACKAGE / "_data" / name
    return installed if installed.is_dir() else _PACKAGE.parent / name


def configs(kind: str) -> dict[str, Path]:
    """Return name -> file of the shipped configs of a kind, such as ``experiments``."""
    return {path.stem: path for path in sorted((directory("configs") / kind).glob("*.yaml"))}

"""Files as programs save them."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path


def archive(path: Path, cut: int = 0) -> None:
    """A file as torch.save writes it, perhaps cut off."""
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as stream:
        stream.writestr("archive/data.pkl", "x" * 3_000)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(held.getvalue()[: -cut or None])

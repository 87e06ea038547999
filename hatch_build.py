"""The README as a package index shows it, without pictures and links of the checkout.

Hatchling calls the hook as it builds a wheel or an sdist.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_PICTURE = re.compile(r"!\[([^\]]*)\]\((?!https?:)[^)]*\)")
_LINK = re.compile(r"\[([^\]]+)\]\((?!https?:)[^)]*\)")


def on_an_index(readme: str) -> str:
    """Return a README with words in place of what only the checkout has: pictures and links."""
    # What is printed as code stays as it is.
    parts = re.split(r"(^```.*?^```|`[^`\n]+`)", readme, flags=re.MULTILINE | re.DOTALL)
    parts[::2] = [_LINK.sub(r"\1", _PICTURE.sub(r"*\1*", part)) for part in parts[::2]]
    return "".join(parts)


class ReadmeHook(MetadataHookInterface):
    """Gives the metadata its long description."""

    def update(self, metadata: dict[str, Any]) -> None:
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": on_an_index(text)}

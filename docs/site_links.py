"""A hook of mkdocs: pages that lie beside docs/ are part of the site, and links lead to them."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parent.parent
DOCS = "docs/"
# Where the pages beside docs/ come to lie in the site.
OTHERS = "project/"
PAGES = ("CHANGELOG.md", "CONTRIBUTING.md", "README.md", "bench/README.md")
_LINK = re.compile(r"\[([^\]]*)\]\(([^)#\s:]+)(#[^)]*)?\)")


def on_files(files: Any, config: Any) -> Any:
    """Add the pages beside docs/."""
    for name in PAGES:
        text = (ROOT / name).read_text(encoding="utf-8")
        files.append(File.generated(config, OTHERS + name, content=text))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    """Point links to where a file lies in the site; what is no part of it loses its link."""
    here = page.file.src_uri
    source = here.removeprefix(OTHERS) if here.startswith(OTHERS) else DOCS + here

    def lead(link: re.Match[str]) -> str:
        words, target, anchor = link.groups()
        found = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        there = found.removeprefix(DOCS) if found.startswith(DOCS) else OTHERS + found
        if files.get_file_from_path(there) is None and (ROOT / found).exists():
            return words  # code, or data: no page of the site
        to = posixpath.relpath(there, posixpath.dirname(here) or ".")
        return f"[{words}]({to}{anchor or ''})"

    return _LINK.sub(lead, markdown)

"""A report's page taken apart."""

from __future__ import annotations

import base64
import json
import zlib
from html.parser import HTMLParser
from typing import Any


class Page(HTMLParser):
    """Elements of a page by name, and its text without that of scripts and styles."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.html = html
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.rows: list[list[str]] = []
        self._texts: list[str] = []
        self._inside = ""
        self._in_cell = False
        self._data: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag in ("script", "style"):
            self._inside = dict(attrs).get("id") or tag
        elif tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")
            self._in_cell = True

    def handle_endtag(self, tag: str) -> None:
        if tag in ("script", "style"):
            self._inside = ""
        elif tag in ("td", "th"):
            self._in_cell = False

    def handle_data(self, data: str) -> None:
        if self._inside:
            if self._inside == "data":
                self._data.append(data)
            return
        self._texts.append(data)
        if self._in_cell:
            self.rows[-1][-1] += data.strip()

    @property
    def text(self) -> str:
        return " ".join(" ".join(self._texts).split())

    @property
    def data(self) -> dict[str, Any]:
        """What the scripts draw."""
        found = json.loads(zlib.decompress(base64.b64decode("".join(self._data))))
        assert isinstance(found, dict)
        return found

    def count(self, tag: str, **attributes: str) -> int:
        """How many elements have these attributes."""
        return sum(
            name == tag and attributes.items() <= {k: v or "" for k, v in found.items()}.items()
            for name, found in self.elements
        )

    def row(self, first: str) -> list[str]:
        """The first row that begins with this cell."""
        return next(row for row in self.rows if row and row[0] == first)

"""The reference page is what the dataclasses say."""

from __future__ import annotations

from hpcrun.compile.spec import reference


def test_the_page_is_up_to_date() -> None:
    text = reference.PAGE.read_text()
    assert text == reference.page(), "run python -m hpcrun.compile.spec.reference"

"""The errors that a caller can catch stand in docs/python.md, with their exit codes."""

from __future__ import annotations

import re
from pathlib import Path

from hpcrun import errors

PAGE = (Path(__file__).parent.parent / "docs" / "python.md").read_text()


def test_every_error_and_its_exit_code_are_in_the_page() -> None:
    rows = re.findall(r"(?m)^\| `(\w+)`(?: \(a `(\w+)`\))? \|.*\| (\d+) \|$", PAGE)
    listed = {name: (parent or "HpcrunError", int(code)) for name, parent, code in rows}
    known = [one for one in vars(errors).values() if isinstance(one, type)]
    public = {
        one.__name__: (one.__base__.__name__, one.exit_code)
        for one in known
        if issubclass(one, errors.HpcrunError) and one.__base__ is not None
    }
    public["HpcrunError"] = ("HpcrunError", errors.HpcrunError.exit_code)
    assert listed == public

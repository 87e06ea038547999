"""Marks of tests elsewhere that ask a tool something: without its folder they are skipped."""

from __future__ import annotations

import pytest

from hpcrun import tools
from hpcrun.cli import commands


def needs_tool(name: str) -> pytest.MarkDecorator:
    """Skip a test, or a case, without this tool."""
    return pytest.mark.skipif(not tools.has(name), reason=f"there is no tool {name} here")


def needs_command(name: str) -> pytest.MarkDecorator:
    """Skip a test, or a case, without the tool that has this command."""
    gone = commands.find(name) is None
    return pytest.mark.skipif(gone, reason=f"there is no command {name} here")

"""What is expected of a command of another package: a click command that explains itself."""

from __future__ import annotations

from typing import Any

from hpcrun.extensions import COMMANDS
from hpcrun.testing.expectation import expect, expect_attributes, expecting

# Of a line of `hpcrun help`.
LONGEST = 100


def check_command(command: Any) -> None:
    """Check that a click command can stand behind ``hpcrun``."""
    import click
    from click.testing import CliRunner

    expect_attributes(command, COMMANDS.needs)
    about = command.get_short_help_str(limit=LONGEST)
    expect(bool(about), "it has no help: write a docstring")
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            expect(bool(parameter.help), f"its option {parameter.opts[0]} has no help")
    with expecting("--help"):
        said = CliRunner().invoke(command, ["--help"], catch_exceptions=False)
        expect(said.exit_code == 0, f"--help ends with {said.exit_code}")

"""Write templates/completion/commands.json, by which TAB is answered, from the commands' help."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from hpcrun.cli import commands
from hpcrun.cli.help import topics
from hpcrun.cli.main import group
from hpcrun.text import one_line, shortened

LONGEST_HELP = 60
FILE = Path(__file__).parent.parent / "templates" / "completion" / "commands.json"


def text() -> str:
    """Return the whole file: a line a command."""
    context = click.Context(group, info_name="hpcrun", **group.context_settings)
    lines = []
    for name, known in commands.own_commands().items():
        command = group.get_command(context, name)
        assert command is not None
        parameters = _parameters(command, click.Context(command, info_name=name, parent=context))
        lines.append(
            f"{json.dumps(name)}: {_json({'about': known.about, 'parameters': parameters})}"
        )
    options = _json(_parameters(group, context))
    return f'{{"options": {options},\n"commands": {{\n' + ",\n".join(lines) + "\n}}\n"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _parameters(command: click.Command, context: click.Context) -> list[dict[str, Any]]:
    return [_record(one) for one in command.get_params(context) if not getattr(one, "hidden", 0)]


def _record(parameter: click.Parameter) -> dict[str, Any]:
    record: dict[str, Any] = {"name": parameter.name}
    if isinstance(parameter, click.Option):
        record["opts"] = [*parameter.opts, *parameter.secondary_opts]
        about = shortened(one_line(parameter.help or ""), LONGEST_HELP)
        takes = 0 if parameter.is_flag or parameter.count else parameter.nargs
        record |= {"about": about} if about else {}
        record |= {"multiple": True} if parameter.multiple or parameter.count else {}
    else:
        takes = parameter.nargs
    record |= {"takes": takes} if takes != 1 else {}
    if isinstance(parameter.type, click.Choice):
        record["choices"] = dict.fromkeys(map(str, parameter.type.choices), "")
    if isinstance(parameter.type, (click.Path, click.File)):
        record["is_path"] = True
    if parameter.name == "topic":
        record["choices"] = {name: text for name, (_, text) in topics().items()}
        record["choices"] |= {name: one.about for name, one in commands.own_commands().items()}
    return record


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")

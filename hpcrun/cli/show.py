"""``hpcrun show``: print one run in full."""

from __future__ import annotations

import json
from typing import Any

import click

from hpcrun.cli.options import Output, common
from hpcrun.cli.where import select_one, where_argument
from hpcrun.errors import UsageError
from hpcrun.text import plural, timestamp, visible


@click.command("show")
@where_argument
@click.option("--config", is_flag=True, help="The resolved spec, as YAML.")
@click.option("--script", is_flag=True, help="The sbatch script.")
@click.option(
    "--deepspeed",
    is_flag=True,
    help="DeepSpeed's JSON: of the newest attempt, or as planned before the first.",
)
@click.option("--code", is_flag=True, help="The frozen code: git state and files.")
@click.option("--path", is_flag=True, help="The run's directory.")
@click.option("--work", is_flag=True, help="The directory of what the program wrote.")
@common
def command(
    where: tuple[str, ...], conditions: tuple[str, ...], output: Output, **options: bool
) -> None:
    """State, configuration and paths of one run; with an option, one of them.

    WHERE is NAME/3, a job id (123_4), a directory or anything else that comes to one run, such as
    NAME lr=3e-4.
    """
    from hpcrun.observe.read import detail

    asked = [name for name, is_given in options.items() if is_given]
    if len(asked) > 1:
        found = " and ".join(f"--{name}" for name in asked)
        raise UsageError(f"found {found}; show prints one of them", hint="leave the others out")
    what = asked[0] if asked else None
    one = select_one(output, "show", where, conditions)
    data: Any
    if what == "config":
        data = one.run.spec
    elif what == "script":
        data = {"script": detail.script(one)}
        for told in detail.suspects(one):
            output.say(f"sbatch was given --exclude too, for suspect nodes: {told}")
    elif what == "deepspeed":
        output.data(detail.deepspeed(one))
        return
    elif what == "code":
        data = detail.code(one)
    elif what == "path":
        data = {"path": str(one.paths.directory)}
    elif what == "work":
        data = {"path": str(one.paths.work)}
        if not one.paths.work.is_dir():
            output.say(f"{one.name} has written nothing there")
    else:
        from hpcrun.observe.status.status import observe

        [seen] = observe([one], warn=output.say)
        data = detail.summary(one, seen.status)
        if fabric := detail.fabric(seen.attempts):
            data["fabric"] = fabric
        if health := detail.health(seen.attempts):
            data["health"] = health
    if output.json:
        output.data(data)
    elif what == "config":
        import yaml

        text = yaml.safe_dump(data, sort_keys=False, allow_unicode=True)
        if visible(text) != text:
            text = yaml.safe_dump(data, sort_keys=False)
        click.echo(text, nl=False)
    elif what == "script":
        click.echo(data["script"], nl=False)
    elif what in ("path", "work"):
        output.line(data["path"])
    elif what == "code":
        _code(data, output)
    else:
        _summary(data, output)


def _code(found: dict[str, Any], output: Output) -> None:
    git = found.get("git") or {}
    state = " ".join(f"{key}={json.dumps(value)}" for key, value in git.items()) or "no git"
    output.say(f"{found['archive']}: {state}")
    for member in found["members"]:
        output.line(member)


def _summary(found: dict[str, Any], output: Output) -> None:
    from hpcrun.observe.tables import number

    if found["submitted"]:
        found["submitted"] = timestamp(found["submitted"])
    found["swept"] = ", ".join(f"{key}={value}" for key, value in found["swept"].items())
    found["cause"] = (found["cause"] or {}).get("kind")
    found["suspects"] = "; ".join(found["suspects"])
    found["tags"] = ", ".join(found["tags"])
    found["notes"] = "; ".join(note["text"] for note in found["notes"])
    if roles := found.pop("roles", None):
        found["roles"] = " | ".join(f"{name}: {told}" for name, told in roles.items())
    if changes := found.pop("changes", None):
        told = ", ".join(f"{name} {value}" for name, value in changes.items())
        found["changed"] = f"{told} (hpcrun update)"
    metrics = found["metrics"] or {}
    found["metrics"] = ", ".join(f"{key}={number(value)}" for key, value in metrics.items())
    if fabric := found.pop("fabric", None):
        count = fabric["count"]
        warned = [f"{plural(count, 'warning', ',')}: hpcrun why has them"] if count else []
        found["fabric"] = "; ".join([*fabric["choices"], *warned])
    if health := found.pop("health", None):
        count = health["count"] or len(health["findings"])
        words = plural(count, "finding", ",")
        found["health"] = f"{words}: {health['reason']}; hpcrun why has them"
    total = found.pop("total_steps")
    if total is not None and found["step"] is not None:
        found["step"] = f"{found['step']} of {total}"
    if found.pop("dirty") and found["commit"]:
        found["commit"] += ", and uncommitted changes"
    width = max(map(len, found))
    for key, value in found.items():
        if value not in (None, ""):
            output.line(f"{key:<{width}}  {value}")

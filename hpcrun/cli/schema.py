"""``hpcrun schema``: the JSON Schema of specs and cluster profiles."""

from __future__ import annotations

import json

import click


@click.command("schema")
@click.argument("file", type=click.Choice(["spec", "profile"]), default="spec", metavar="[FILE]")
def command(file: str) -> None:
    """Print the JSON Schema (draft 2020-12) of specs, or of cluster profiles.

    FILE is the kind of file: spec, or profile. An editor completes and checks a spec by it: write
    it to a file beside the spec, and begin the spec with the line

    \b
        # yaml-language-server: $schema=spec.schema.json

    What it refuses `hpcrun plan` refuses; plan finds more.
    """
    from hpcrun.compile.spec import json_schema

    click.echo(json.dumps(json_schema.of(file), indent=1))

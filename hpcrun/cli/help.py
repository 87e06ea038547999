"""``hpcrun help``, a command's help or a page of the documentation; ``schema``, for an editor."""

from __future__ import annotations

import functools
import json
import re
import shutil
import sys
from collections.abc import Mapping

import click

from hpcrun import resources
from hpcrun.cli import commands
from hpcrun.cli.main import group
from hpcrun.cli.options import Output, common
from hpcrun.errors import HpcrunError, UsageError
from hpcrun.extensions import COMMANDS
from hpcrun.text import shortened

# A page of docs/README.md -> the topic that it is, where that has another name.
_TOPICS = {
    "getting-started": "start",
    "init": "new-cluster",
    "chaining": "chains",
    "deepspeed-configs": "deepspeed",
    "environment": "environments",
    "check": "checks",
    "estimate": "estimates",
    "tune": "tuning",
    "profile": "profiling",
    "tracking": "trackers",
    "choosing-runs": "where",
    "when-runs-fail": "recovery",
    "looking-inside": "inside",
    "top": "screen",
    "report": "reports",
    "finding-files": "files",
    "weights": "exported-weights",
    "keeping-order": "order",
    "doctor": "examining",
    "health": "bad-nodes",
    "cli": "commands",
    "spec": "specs",
    "files": "records",
    "recovery": "recovery-rules",
    "working-directory": "directories",
}
_LINE = re.compile(r"- \[[^]]*\]\(([\w-]+)\.md\): (.*)")
# It lies beside docs, and is found though it is no topic.
_README = "../README"
_WIDEST_PAGE = 100
# Lines of the best answer to a question.
_MOST_LINES = 12


@click.command("help", context_settings={"ignore_unknown_options": True})
@click.argument("topic", nargs=-1, type=click.UNPROCESSED, metavar="[TOPIC | COMMAND | WORDS]")
@common
@click.pass_context
def command(context: click.Context, topic: tuple[str, ...], output: Output) -> None:
    """A page, a command's --help, or what answers WORDS; without any of them the list of all.

    WORDS are a question, a key of a spec or a profile, or a message that was pasted: all pages,
    keys and commands are searched. Pages come with hpcrun and need no network. On a terminal they
    are shown by PAGER; in a pipe they are Markdown.
    """
    name = topic[0] if len(topic) == 1 else ""
    if not topic and output.json:
        every = {one: about for one, (_, about) in topics().items()}
        every |= {one: known.about for one, known in commands.own_commands().items()}
        output.data([{"name": one, "about": about} for one, about in every.items()])
    elif not topic:
        click.echo(_contents())
    elif name and (asked := group.get_command(context.find_root(), name)):
        inner = click.Context(asked, info_name=name, parent=context.find_root())
        text = asked.get_help(inner)
        output.data({"name": name, "text": text}) if output.json else click.echo(text)
    elif name and (stem := _stem(name)):
        page = _page(stem)
        output.data({"name": name, "text": page}) if output.json else _show(page)
    else:
        _answer(" ".join(topic), output)


@functools.cache
def parts() -> dict[str, dict[str, tuple[str, str]]]:
    """Return each part of the documentation: topic -> its file in docs, and what it is about.

    docs/README.md lists them; the wheel's pages stand in pyproject.toml, the menu in mkdocs.yml.
    """
    found: dict[str, dict[str, tuple[str, str]]] = {}
    for line in _page("README").splitlines():
        if line.startswith("## "):
            part = found.setdefault(line[3:], {})
        elif page := _LINE.fullmatch(line):
            part[_TOPICS.get(page[1], page[1])] = page[1], page[2]
    return found


def topics() -> dict[str, tuple[str, str]]:
    """Return topic -> its file in docs, and what it is about."""
    return {name: page for pages in parts().values() for name, page in pages.items()}


def _contents() -> str:
    width = max(map(len, (*topics(), *commands.own_commands())))
    lines = []
    for title, under in commands.groups().items():
        lines += _section(title, {name: one.about for name, one in under.items()}, width)
    if others := COMMANDS.names:
        lines += _section("Of other packages", {name: _offered(name) for name in others}, width)
    for part, pages in parts().items():
        about = {name: text for name, (_, text) in pages.items()}
        lines += _section(f"Topics, {part.lower()}", about, width)
    return "\n".join([*lines, "hpcrun help NAME shows any of them."])


def _section(title: str, entries: Mapping[str, str], width: int) -> list[str]:
    return [f"{title}:", *(f"  {name:<{width}}  {about}" for name, about in entries.items()), ""]


def _offered(name: str) -> str:
    """Return the line on another package's command, or why it cannot be loaded."""
    try:
        about = COMMANDS.load(name).get_short_help_str(limit=_WIDEST_PAGE)
    except HpcrunError as error:
        about = error.message
    return f"{about} ({COMMANDS.package(name)})"


def _stem(topic: str) -> str | None:
    """Return the file of a topic's page, which is also found by that name; None if unknown."""
    files = {stem: stem for stem, _ in topics().values()} | {
        name: stem for name, (stem, _) in topics().items()
    }
    files["readme"] = _README
    return files.get(topic.lower().removesuffix(".md"))


def pages() -> dict[str, str]:
    """Return topic -> page as Markdown, of all that is searched: the README too."""
    return {name: _page(stem) for name, (stem, _) in topics().items()} | {"readme": _page(_README)}


def _page(stem: str) -> str:
    text = (resources.directory("docs") / f"{stem}.md").read_text(encoding="utf-8")
    return re.sub(r"<!--.*?-->\n", "", text, flags=re.DOTALL)


def _answer(words: str, output: Output) -> None:
    """Print what answers a question, the best first; raise UsageError where nothing does."""
    from hpcrun.cli import ask

    found = ask.answers(words, pages())
    if not found:
        raise UsageError(
            f"nothing that hpcrun says has a word of {shortened(words, 200)!r}",
            hint="hpcrun help lists all",
        )
    if output.json:
        output.data([one._asdict() for one in found])
        return
    for number, one in enumerate(found):
        # The best is shown as it stands, of the others the beginning.
        text = ask.as_text(one.text)
        shown = [shortened(" ".join(text.split()), 150)] if number else text.splitlines()
        if len(shown) > _MOST_LINES:
            shown = [*shown[:_MOST_LINES], "…"]
        output.line(f"{one.title}  ({one.where})")
        for line in shown:
            output.line(f"  {line}".rstrip())
        output.line("")


def _show(text: str) -> None:
    """Print Markdown as it is into a pipe, and drawn and paged on a terminal."""
    if not sys.stdout.isatty():
        click.echo(text, nl=False)
        return
    from io import StringIO

    from rich.console import Console
    from rich.markdown import Markdown

    width = min(shutil.get_terminal_size().columns, _WIDEST_PAGE)
    drawn = StringIO()
    Console(file=drawn, width=width, force_terminal=True).print(Markdown(text, hyperlinks=False))
    click.echo_via_pager(drawn.getvalue())


@click.command("schema")
@click.argument("file", type=click.Choice(["spec", "profile"]), default="spec", metavar="[FILE]")
def schema(file: str) -> None:
    """Print the JSON Schema (draft 2020-12) of specs, or of cluster profiles.

    FILE is the kind of file: spec, or profile. An editor completes and checks a spec by it: write
    it to a file beside the spec, and begin the spec with the line

    \b
        # yaml-language-server: $schema=spec.schema.json

    What it refuses `hpcrun plan` refuses; plan finds more.
    """
    from hpcrun.compile.spec import json_schema

    click.echo(json.dumps(json_schema.of(file), indent=1))

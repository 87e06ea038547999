"""``hpcrun help``: help of a command, or a page of the documentation that ships with hpcrun."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Mapping

import click

from hpcrun import resources
from hpcrun.cli import commands
from hpcrun.cli.main import group
from hpcrun.errors import HpcrunError, UsageError
from hpcrun.text import shortened

# Topic -> the file in docs, and what it is about. pyproject.toml lists the files for the wheel.
TOPICS = {
    "new-cluster": ("init", "the first five minutes on a new cluster"),
    "from-sbatch": ("from-sbatch", "what `hpcrun init --from` makes of an sbatch script"),
    "start": ("getting-started", "from an empty directory to a sweep that survives a killed rank"),
    "where": ("choosing-runs", "which runs a command is about: names, patterns, state=failed"),
    "sweeps": ("sweeps", "many runs from one spec"),
    "recovery": ("when-runs-fail", "what to type when runs fail, and what comes back by itself"),
    "inside": ("looking-inside", "stacks, commands and shells beside live ranks"),
    "python": ("python", "submit and read runs from a program of yours"),
    "files": ("finding-files", "where code, logs, metrics and checkpoints are"),
    "specs": ("spec", "every key of a spec and of a cluster profile"),
    "commands": ("cli", "the root, exit codes, and every command's options"),
    "examining": ("doctor", "what `hpcrun doctor` judges, and how it finds bad nodes"),
    "bad-nodes": ("health", "the check of a job's nodes, and the suspect ones"),
    "storage": ("storage", "what is relied on of shared storage, and what mount options change"),
    "checks": ("check", "what is checked against the cluster before the queue"),
    "estimates": ("estimate", "memory, time and money of a run: formulas and their sources"),
    "optimizers": ("optimizers", "which optimizer runs where; schedules, scaled rates, layers"),
    "jobs": ("jobs", "programs to copy: language models, images; exact evaluation"),
    "data": ("data", "session.loader: samples in an order that restarts do not change"),
    "parallelism": ("parallelism", "tensor, pipeline and sequence parallelism: one model for all"),
    "profiling": ("profile", "where a step's time goes, MFU, memory by kind"),
    "tuning": ("tune", "the fastest configuration that fits, found by trials"),
    "roles": ("roles", "unlike processes as one run: servers, an evaluator, nodes of other kinds"),
    "precision": ("precision", "bf16, fp16 and fp8; memory, offload, cheaper synchronisation"),
    "environments": ("environment", "the job's packages: recorded, compared, frozen"),
    "containers": ("containers", "ranks in an image: Apptainer, Charliecloud, bubblewrap, Pyxis"),
    "frameworks": ("frameworks", "a spec for Hugging Face, Accelerate, Lightning, JAX, …"),
    "deepspeed": ("deepspeed-configs", "published DeepSpeed configurations"),
    "screen": ("top", "the live screen of hpcrun top, and its keys"),
    "reports": ("report", "the HTML page"),
    "exported-weights": ("weights", "a run's weights as safetensors, whatever divided the model"),
    "checkpoints": ("checkpoints", "what is saved, when, and how it is checked"),
    "recovery-rules": ("recovery", "how causes are found, and what follows from them"),
    "observing": ("observing", "how status, logs and why know what they say"),
    "telemetry": ("telemetry", "utilisation, and trackers such as W&B and TensorBoard"),
    "directories": ("working-directory", "where a program runs and what it may write there"),
    "records": ("files", "each file on disk, and what its records hold"),
    "processes": ("processes", "which processes a job has"),
    "sharing": ("sharing", "roots that a group uses together"),
    "security": ("security", "what is trusted, and what never is"),
    "glossary": ("glossary", "words"),
}
_WIDEST_PAGE = 100


@click.command("help")
@click.argument("topic", required=False, metavar="[TOPIC | COMMAND]")
@click.pass_context
def command(context: click.Context, topic: str | None) -> None:
    """A page of the documentation, a command's --help, or without either the list of all.

    Pages come with hpcrun and need no network. On a terminal they are shown by PAGER; in a pipe
    they are Markdown.
    """
    if topic is None:
        click.echo(_contents())
    elif asked := group.get_command(context.find_root(), topic):
        inner = click.Context(asked, info_name=topic, parent=context.find_root())
        click.echo(asked.get_help(inner))
    else:
        _show(_page(topic))


def _contents() -> str:
    width = max(map(len, (*TOPICS, *commands.known())))
    lines = []
    for title, under in commands.groups().items():
        lines += _section(title, {name: one.about for name, one in under.items()}, width)
    if others := commands.OTHERS.names:
        lines += _section("Of other packages", {name: _offered(name) for name in others}, width)
    lines += _section("Topics", {name: text for name, (_, text) in TOPICS.items()}, width)
    return "\n".join([*lines, "hpcrun help NAME shows any of them."])


def _section(title: str, entries: Mapping[str, str], width: int) -> list[str]:
    return [f"{title}:", *(f"  {name:<{width}}  {about}" for name, about in entries.items()), ""]


def _offered(name: str) -> str:
    """Return the line on another package's command, or why it cannot be loaded."""
    try:
        about = commands.OTHERS.load(name).get_short_help_str(limit=_WIDEST_PAGE)
    except HpcrunError as error:
        about = error.message
    return f"{about} ({commands.OTHERS.package(name)})"


def _page(topic: str) -> str:
    """Return a topic's page; also found by the name of its file. Raise UsageError if unknown."""
    from difflib import get_close_matches

    files = {stem: stem for stem, _ in TOPICS.values()} | {
        name: stem for name, (stem, _) in TOPICS.items()
    }
    stem = files.get(topic.lower().removesuffix(".md"))
    if stem is None:
        near = get_close_matches(topic.lower(), [*TOPICS, *commands.known()], n=1)
        shown = shortened(topic, 200)
        raise UsageError(
            f"there is neither a command nor a topic {shown!r}; topics are {', '.join(TOPICS)}",
            hint=f"did you mean 'hpcrun help {near[0]}'?" if near else "hpcrun help lists all",
        )
    text = (resources.directory("docs") / f"{stem}.md").read_text(encoding="utf-8")
    return re.sub(r"<!--.*?-->\n", "", text, flags=re.DOTALL)


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

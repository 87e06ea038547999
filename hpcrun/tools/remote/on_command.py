"""``hpcrun --on CLUSTER COMMAND …``: run a command on a login node, as if it were typed there."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TextIO

import click

from hpcrun.errors import (
    EXIT_INTERRUPTED,
    EXIT_OK,
    ClusterUnreachable,
    HpcrunError,
    UsageError,
)
from hpcrun.text import shortened

if TYPE_CHECKING:
    from hpcrun.tools.remote.checkout import Checkout
    from hpcrun.tools.remote.followed_lines import FollowedLines
    from hpcrun.tools.remote.login_node import LoginNode

_WAITS = (1, 2, 4, 8, 15)
_MOST_WRITTEN = 50
_CHUNK = 1 << 16
# Seconds.
_MOST_FOR_TAB = 5.0


@click.command("on", context_settings={"ignore_unknown_options": True, "help_option_names": []})
@click.argument("cluster", metavar="CLUSTER")
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="COMMAND...")
def command(cluster: str, words: tuple[str, ...]) -> int:
    """A command on a login node, with ssh, as if it were typed there; --on CLUSTER is the same.

    CLUSTER is a profile that has host:, or a host as ssh takes it. Commands that take SPEC have the
    code around it brought, as submit would freeze it; files that they write come back.
    """
    if cluster in ("-h", "--help"):
        click.echo(click.get_current_context().get_help())
        return EXIT_OK
    if not words:
        raise UsageError(
            f"what is to run on {shortened(cluster, 80)}?", hint=f"hpcrun --on {cluster} status"
        )
    return _Errand(cluster, words).run()


@dataclass
class _Typed:
    """What was typed, as the command itself will read it."""

    name: str = ""
    """The command; empty where there is none."""
    values: dict[str, Any] = field(default_factory=dict)
    writes: str | None = None
    """The parameter of the file that it writes."""


def _parse(words: Sequence[str]) -> _Typed:
    """Read a command line as far as it is right; what is wrong with it is told at its end."""
    from hpcrun.cli import commands

    above = click.get_current_context().find_root()
    with contextlib.suppress(click.ClickException, HpcrunError):
        parser = above.command.make_parser(above)
        _, rest, _ = parser.parse_args(list(words))
        loaded = commands.load(rest[0]) if rest and commands.find(rest[0]) else None
        if loaded is None:
            return _Typed(rest[0] if rest else "")
        context = loaded.make_context(rest[0], list(rest[1:]), above, resilient_parsing=True)
        writes = [
            one.name
            for one in loaded.params
            if isinstance(one.type, click.Path) and "-o" in one.opts and one.name
        ]
        return _Typed(rest[0], context.params, writes[0] if writes else None)
    return _Typed()


class _Errand:
    """A command that runs on a login node."""

    def __init__(self, cluster: str, words: Sequence[str]) -> None:
        self.destination, self.profile = host_of(cluster)
        self.near = None if self.profile else _near(cluster)
        self.words = list(words)
        self.typed = _parse(words)
        self.variables = {"HPCRUN_ON": "1"}
        self.checkout: Checkout | None = None
        self.top = ""
        self.scratch: str | None = None
        self.far: dict[str, Any] = {}
        values = self.typed.values
        self.follows = self.typed.name == "logs" and bool(values.get("follow"))
        self.follows = self.follows and not values.get("raw")
        serves = bool(values.get("serve"))
        self.terminal = all(map(os.isatty, (0, 1, 2))) and not (self.follows or serves)
        self.port = self._port() if serves else None

    def say(self, message: str) -> None:
        """Print a message on stderr, unless this command is quiet."""
        if not {"-q", "--quiet"} & set(self.words):
            click.echo(message, err=True)

    def run(self) -> int:
        """Run it, again and again where it only shows and the connection is lost."""
        from hpcrun.tools.remote.followed_lines import FollowedLines
        from hpcrun.tools.remote.login_node import LOST, LoginNode

        lines = FollowedLines() if self.follows else None
        goes_on = self.follows or self.typed.name == "top"
        lost = 0
        while True:
            try:
                with LoginNode(self.destination) as node:
                    self._prepare(node, lines)
                    lost = 0
                    code = self._command(node, lines)
                    # Its own exit code may be the same.
                    if code != LOST or _answers(node):
                        self._bring_back(node, code)
                        return code
            except HpcrunError as error:
                if not self.far and self.near and not isinstance(error, UsageError):
                    meant = f"did you mean the profile {self.near}?"
                    raise type(error)(error.message, hint=f"{error.hint}; {meant}") from None
                if not (goes_on and (lost or self.far)) or isinstance(error, UsageError):
                    raise
            if not goes_on:
                raise ClusterUnreachable(
                    f"the connection to {self.destination} was lost while the command ran there",
                    hint="what it did is kept; type it again and it goes on, or look: "
                    f"`hpcrun --on {self.destination} status`",
                )
            wait = _WAITS[min(lost, len(_WAITS) - 1)]
            lost += 1
            self.say(f"no connection to {self.destination}: trying again in {wait} s (Ctrl-C ends)")
            time.sleep(wait)

    def _prepare(self, node: LoginNode, lines: FollowedLines | None) -> None:
        """Bring what the command needs: hpcrun, the code, where to go on."""
        from hpcrun import __version__
        from hpcrun.tools.remote import own_copy

        self.far = node.hello()
        if self.far["own"] == __version__:
            self.far["copy"] = ""
        elif not self.far["has_copy"]:
            own = f" (it has {shortened(str(self.far['own']), 20)})" if self.far["own"] else ""
            self.say(f"bringing hpcrun {__version__} to {node.name}{own}, once")
            node.ask("install", own_copy.archive(), copy=own_copy.digest())
        if self.checkout is None and self._takes_code():
            self._bring_code(node)
        if self.typed.writes and self.scratch is None and not self._takes_code():
            self._write_there(node)
        if lines is not None:
            if sys.stdout.isatty():
                self.variables["CLICOLOR_FORCE"] = "1"
            places = node.ask("scratch")["path"]
            kept = node.ask("keep", lines.known(), path=places, file="places.json")
            self.variables["HPCRUN_LOGS_PLACES"] = kept["path"]
            lines.begin()

    def _takes_code(self) -> bool:
        return "spec" in self.typed.values or self.typed.name == "init"

    def _bring_code(self, node: LoginNode) -> None:
        from hpcrun.cli.options import SPEC_HERE, is_override
        from hpcrun.tools.remote import checkout

        values = self.typed.values
        typed = values.get("spec")
        overrides = tuple(values.get("overrides") or ())
        if typed is not None and is_override(typed):
            typed, overrides = None, (typed, *overrides)
        spec = Path(os.path.expanduser(typed or SPEC_HERE))  # noqa: PTH111
        if not spec.is_file():
            if typed is not None and self.typed.name != "init":
                return  # a name that ships, or a mistake that is told there
            spec = None  # type: ignore[assignment]
        found = checkout.around(spec, overrides, tuple(values.get("sweeps") or ()))
        self.top = found.bring(node, self.say, has_git=self.far["has_git"])
        self.checkout = found
        if typed is not None and spec is not None:
            at = self.words.index(typed)
            here = found.top / found.inside(Path.cwd())
            self.words[at] = os.path.relpath(spec.resolve(), here)
        if self.profile is not None and not self.profile.resolve().is_relative_to(found.top):
            data = self.profile.read_bytes()
            kept = node.ask("keep", data, key=found.place["key"], file=self.profile.name)
            self.variables["HPCRUN_CLUSTERS"] = str(Path(kept["path"]).parent)

    def _write_there(self, node: LoginNode) -> None:
        """Have the command write into a directory of its own there, from which files are fetched.

        Raises UsageError if a file is here already, unless --force was typed.
        """
        value = self.typed.values.get(str(self.typed.writes))
        value = None if value is None else str(value)
        if value == "-":
            return
        if value is not None:
            file = Path(value)
            if not file.absolute().parent.is_dir():
                raise UsageError(
                    f"{file}: there is no directory {file.parent}",
                    hint="make it first, or name another file with -o",
                )
            self._check_free(file)
            typed = {value: file.name, f"-o{value}": f"-o{file.name}"}
            typed[f"--output={value}"] = f"--output={file.name}"
            self.words = [typed.get(one, one) for one in self.words]
        self.scratch = str(node.ask("scratch")["path"])

    def _check_free(self, file: Path) -> None:
        """Raise UsageError if a file is here that must not be replaced: all but a report."""
        from hpcrun.submission.code.code_files import is_report

        is_free = not os.path.lexists(file) or file.is_dir() or is_report(file)
        if not (is_free or self.typed.values.get("force")):
            raise UsageError(
                f"{file} is here already, and stays as it is",
                hint="remove it, or name another file with -o",
            )

    def _cwd(self) -> str:
        if self.scratch is not None:
            return self.scratch
        if self.checkout is None:
            return str(self.far["home"])
        return os.path.normpath(f"{self.top}/{self.checkout.inside(Path.cwd())}")

    def _command(self, node: LoginNode, lines: FollowedLines | None) -> int:
        """Run the command; return its exit code, or that of ssh where the connection is lost."""
        from hpcrun.tools.remote.login_node import LOST

        if self.port is not None:
            node.forward(self.port)
        task = {
            "words": self.words,
            "cwd": self._cwd(),
            "copy": self.far["copy"],
            "variables": self.variables,
        }
        reads = not sys.stdin.isatty() and not self.follows
        process, mark = node.start(self.far, task, terminal=self.terminal, reads=reads)
        assert process.stdout is not None
        assert process.stderr is not None
        out = threading.Thread(
            target=_relay, args=(process.stdout, sys.stdout, mark, self.terminal, lines)
        )
        marked = None if self.terminal else mark
        errors = threading.Thread(
            target=_relay, args=(process.stderr, sys.stderr, marked, self.terminal)
        )
        with _interrupts(self.terminal):
            for thread in (out, errors):
                thread.start()
            try:
                code = process.wait()
                for thread in (out, errors):
                    thread.join()
            except KeyboardInterrupt:
                process.terminate()
                process.wait()
                raise
        if code < 0:
            return EXIT_INTERRUPTED if code == -signal.SIGINT else LOST
        return code

    def _bring_back(self, node: LoginNode, code: int) -> None:
        """Fetch what the command has written."""
        if self.checkout is not None:
            self.checkout.take(node, self.say)
        if self.scratch is None:
            return
        value = self.typed.values.get(str(self.typed.writes))
        names = [str(one) for one in node.ask("inventory", path=self.scratch)["files"]]
        for name in names[:_MOST_WRITTEN] if code == 0 else ():
            if name != Path(name).name or name.startswith("."):
                continue
            file = Path(value) if value is not None and Path(value).name == name else Path(name)
            self._check_free(file)
            partial = file.with_name(f".{file.name}.partial")
            with open(partial, "wb") as stream:
                node.fetch(stream, path=self.scratch, name=name)
            partial.replace(file)
            self.say(f"brought here: {file}")

    def _port(self) -> int:
        """Return the port that a report is served on here and there, and type it."""
        if (port := self.typed.values.get("port")) is not None:
            return int(port)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.words += ["--port", str(port)]
        return int(port)


def _answers(node: LoginNode) -> bool:
    """Check whether a connection still carries something."""
    with contextlib.suppress(HpcrunError):
        node.ask("ping")
        return True
    return False


def completions(cluster: str, line: str, current: str | None) -> list[str]:
    """Return the answers to TAB of the hpcrun there, in a moment and without a question, or none.

    ``line`` is typed up to the cursor; ``current`` is the word there as the shell divides it.
    """
    from hpcrun.tools.remote.login_node import LoginNode

    variables = {"_HPCRUN_COMPLETE": "1", "COMP_WORDS": line}
    if current is not None:
        variables["COMP_CURRENT"] = current
    try:
        destination, _ = host_of(cluster)
        with LoginNode(destination, quick=True) as node:
            far = node.hello()
            if not (far["has_copy"] or far["own"]):
                return []
            copy = far["copy"] if far["has_copy"] else ""
            task = {"words": [], "cwd": far["home"], "copy": copy, "variables": variables}
            process, mark = node.start(far, task, terminal=False, reads=False)
            output, _ = process.communicate(timeout=_MOST_FOR_TAB)
    except (HpcrunError, OSError, subprocess.SubprocessError):
        return []
    _, _, rows = output.partition(mark + b"\n")
    return rows.decode("utf-8", "replace").splitlines()


def host_of(cluster: str) -> tuple[str, Path | None]:
    """Return the destination for ssh, and the profile that names it, if one does.

    Raises UsageError if the profile of that name has no ``host``.
    """
    profile = _own_profiles().get(cluster)
    if profile is None:
        return cluster, None
    import yaml

    try:
        read = yaml.safe_load(profile.read_text("utf-8", "replace"))
    except yaml.YAMLError as error:
        raise UsageError(f"{profile} is no YAML: {error}") from None
    host = read.get("host") if isinstance(read, dict) else None
    if not isinstance(host, str):
        from difflib import get_close_matches

        near = get_close_matches("host", map(str, read) if isinstance(read, dict) else (), 1)
        raise UsageError(
            f"the profile {profile} has no host, which ssh would reach",
            hint=(f"did you mean host where it has {near[0]}? Else " if near else "")
            + "add `host: login.example.org` to it, or type the host: --on login.example.org",
        )
    return host, profile


def _near(cluster: str) -> str | None:
    """Return the name of a profile that was nearly typed."""
    from difflib import get_close_matches

    return next(iter(get_close_matches(cluster.lower(), _own_profiles(), 1)), None)


def _own_profiles() -> dict[str, Path]:
    """Return name -> file of the profiles that can be named here, but for those that ship."""
    from hpcrun.compile.spec import profile_files

    shipped = profile_files.shipped_directory()
    found = profile_files.available(Path.cwd()).items()
    return {name: path for name, path in found if path.parent != shipped}


@contextlib.contextmanager
def _interrupts(terminal: bool) -> Iterator[None]:
    """Leave Ctrl-C to the other end where it has a terminal: ssh passes it on as a key."""
    if not terminal:
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _relay(
    source: IO[bytes],
    target: TextIO,
    mark: bytes | None,
    screens: bool,
    lines: FollowedLines | None = None,
) -> None:
    """Pass on what a command prints, from the line of its mark on.

    What comes before is what login shells print; it is shown if no mark comes.
    """
    from hpcrun.terminal import styled
    from hpcrun.tools.remote.terminal_filter import TerminalFilter

    out = styled(target).buffer
    kept = TerminalFilter(screens=screens) if target.isatty() else None
    before = b""
    for data in iter(lambda: source.read1(_CHUNK), b""):  # type: ignore[attr-defined]
        if mark is not None:
            before += data
            _, _, data = before.partition(mark)
            if b"\n" not in data:
                continue
            data, mark, before = data.partition(b"\n")[2], None, b""
        if lines is not None:
            data = lines.feed(data)
        with contextlib.suppress(BrokenPipeError):
            out.write(kept.feed(data) if kept else data)
            out.flush()
    rest = before if target is sys.stderr or screens else b""
    with contextlib.suppress(BrokenPipeError):
        out.write((kept.feed(rest) + kept.end()) if kept else rest)
        out.flush()

"""A page printed to PDF by a browser of this machine, without a screen or the network."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from hpcrun import host
from hpcrun.errors import HpcrunError, UsageError
from hpcrun.text import one_line, shortened

SUFFIX = ".pdf"
MAGIC = b"%PDF-"
BROWSERS = (
    *("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome"),
    *("microsoft-edge", "brave-browser"),
)
# Seconds; a page of 1,000 runs took 20 on two cores.
LONGEST = 180.0
# What the page does not need; every name of a host is one that there is not.
_FLAGS = (
    *(
        "headless",
        "disable-gpu",
        "no-first-run",
        "no-default-browser-check",
        "no-pdf-header-footer",
    ),
    *("disable-background-networking", "disable-component-update", "disable-sync"),
    *("disable-extensions", "disable-dev-shm-usage"),
    *("host-resolver-rules=MAP * ~NOTFOUND", "proxy-server=127.0.0.1:9"),
)


def find_browser(file: Path) -> str:
    """Return the program that prints; raise UsageError if there is none for ``file``."""
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        raise UsageError(
            f"-o {file}: a browser prints a PDF, and none is on PATH ({', '.join(BROWSERS)})",
            hint=f"-o {file.with_suffix('.html')}, and print that to a PDF in a browser",
        )
    return found


def print_page(browser: str, page: bytes, file: Path) -> bytes:
    """Return the PDF of a page; raise HpcrunError if the browser makes none in `LONGEST` seconds.

    ``file`` is where it is to go, for what an error says.
    """
    with tempfile.TemporaryDirectory(prefix="hpcrun-", ignore_cleanup_errors=True) as directory:
        source, printed = Path(directory, "page.html"), Path(directory, "page.pdf")
        source.write_bytes(page)
        flags = [*_FLAGS, f"user-data-dir={directory}/profile", f"print-to-pdf={printed}"]
        if os.geteuid() == 0:  # who has no sandbox there
            flags.append("no-sandbox")
        argv = [browser, *(f"--{flag}" for flag in flags), source.as_uri()]
        environment = {**os.environ, "HOME": directory, "XDG_RUNTIME_DIR": directory}
        hint = f"-o {file.with_suffix('.html')}, and print that to a PDF in a browser"
        try:
            process = host.start_piped(argv, env=environment, cwd=directory)
        except OSError as error:
            raise HpcrunError(f"{browser} does not start: {error.strerror}", hint=hint) from error
        told = host.answer(process, LONGEST)
        host.end_session(process)  # and what it left
        if told is None:
            raise HpcrunError(f"{browser} printed nothing in {LONGEST:.0f} s", hint=hint)
        try:
            found = printed.read_bytes()
        except FileNotFoundError:
            found = b""
        if not found.startswith(MAGIC):
            lines = [line for text in reversed(told) for line in text.splitlines() if line.strip()]
            said = f": {shortened(one_line(lines[-1]), 200)}" if lines else ""
            raise HpcrunError(
                f"{browser} printed nothing (exit code {process.returncode}){said}", hint=hint
            )
        return found

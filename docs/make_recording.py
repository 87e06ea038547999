"""Write docs/images/first-minute.svg: the README's first commands, typed in a real terminal (tmux).

python docs/make_recording.py
"""

from __future__ import annotations

import itertools
import shutil
import sys
import tempfile
import time
from pathlib import Path
from xml.sax.saxutils import escape

from rich.style import Style
from rich.text import Text

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "docs")]

from make_screens import THEME  # noqa: E402 - not before the line above

from bench import first_minute  # noqa: E402
from tests.support.tmux import Tmux  # noqa: E402

PAGE = ROOT / "docs" / "images" / "first-minute.svg"
COLUMNS, ROWS = 100, 26
WIDE, HIGH, EDGE = 7.8, 17, 12
# Seconds: between two looks, the longest that a picture stays, and the last one.
LOOK, LONGEST, LAST = 0.15, 1.2, 6.0
PROMPT = "$ "


def color(style: Style) -> str:
    """Return a style's colour; that of plain text if it has none."""
    found = style.color
    if found is None or found.is_default:
        return "" if not style.dim else "#8a8f98"
    return found.get_truecolor(THEME).hex


def drawn(line: str) -> str:
    """Return a line of the terminal as the inside of an SVG text; empty if nothing is on it."""
    text, found = Text.from_ansi(line), []
    for start, end, style in _pieces(text):
        piece = text.plain[start:end]
        if piece.strip():
            fill = f' fill="{shade}"' if (shade := color(style)) else ""
            weight = ' font-weight="bold"' if style.bold else ""
            place = f'x="{start * WIDE:g}" textLength="{len(piece) * WIDE:g}"'
            found.append(f"<tspan {place}{fill}{weight}>{escape(piece)}</tspan>")
    return "".join(found)


def _pieces(text: Text) -> list[tuple[int, int, Style]]:
    edges = {0, len(text.plain), *(edge for span in text.spans for edge in (span.start, span.end))}
    ordered = sorted(edge for edge in edges if edge <= len(text.plain))
    pieces = []
    for start, end in itertools.pairwise(ordered):
        style = Style()
        for span in text.spans:
            if span.start <= start < span.end and isinstance(span.style, Style):
                style += span.style
        pieces.append((start, end, style))
    return pieces


def film(frames: list[tuple[float, str]]) -> str:
    """Return an SVG that plays the screens in turn; each comes with the seconds that it stays."""
    lines: dict[str, int] = {}
    pictures, stops, now = [], [], 0.0
    width, height = COLUMNS * WIDE + 2 * EDGE, ROWS * HIGH + 2 * EDGE
    whole = sum(seconds for seconds, _ in frames)
    for at, (seconds, screen) in enumerate(frames):
        used = []
        for row, line in enumerate(screen.rstrip("\n").split("\n")):
            if inside := drawn(line.rstrip()):
                number = lines.setdefault(inside, len(lines))
                used.append(f'<use href="#l{number}" y="{(row + 1) * HIGH}"/>')
        pictures.append(f'<g transform="translate({at * width:g})">{"".join(used)}</g>')
        stops.append(f"{100 * now / whole:.2f}%{{transform:translateX({-at * width:g}px)}}")
        now += seconds
    texts = "\n".join(f'<text id="l{at}">{inside}</text>' for inside, at in lines.items())
    last = -(len(frames) - 1) * width
    return f"""\
<svg viewBox="0 0 {width:g} {height:g}" xmlns="http://www.w3.org/2000/svg">
<!-- Made by docs/make_recording.py of what hpcrun printed. -->
<style>
text {{ font: 13px ui-monospace, DejaVu Sans Mono, Menlo, Consolas, monospace; fill: #cdd1d6;
  white-space: pre }}
.film {{ transform: translateX({last:g}px); animation: play {whole:.1f}s step-end infinite }}
@keyframes play {{ {"".join(stops)} }}
@media (prefers-reduced-motion: reduce) {{ .film {{ animation: none }} }}
</style>
<defs>
{texts}
<clipPath id="screen"><rect width="{COLUMNS * WIDE:g}" height="{ROWS * HIGH + 6:g}"/></clipPath>
</defs>
<rect width="{width:g}" height="{height:g}" rx="8" fill="#181a1f"/>
<g transform="translate({EDGE} {EDGE - 4})" clip-path="url(#screen)"><g class="film">
{chr(10).join(pictures)}
</g></g>
</svg>
"""


class Recorder:
    """Looks at a terminal, and keeps what changed; ``hidden`` are paths of this machine."""

    def __init__(self, terminal: Tmux, hidden: dict[str, str]) -> None:
        self._terminal, self._hidden = terminal, hidden
        self._seen: list[tuple[float, str]] = []

    def look(self) -> str:
        """Keep the screen as it is now, and return its text."""
        screen = self._terminal.colored
        for path, shown in self._hidden.items():
            screen = screen.replace(path, shown)
        if not self._seen or screen != self._seen[-1][1]:
            self._seen.append((time.monotonic(), screen))
        return Text.from_ansi(screen.rstrip()).plain

    def type(self, line: str) -> None:
        """Type a command, and wait for its end."""
        for word in line.split(" "):
            self._terminal.type(word if word == line.split(" ")[0] else f" {word}")
            self.look()
            time.sleep(LOOK)
        self._terminal.press("Enter")
        time.sleep(0.5)
        end = time.monotonic() + 120
        while self.look().splitlines()[-1].strip() != PROMPT.strip():
            if time.monotonic() > end:
                raise SystemExit(f"no end of {line}:\n{self.look()}")
            time.sleep(LOOK)

    def frames(self) -> list[tuple[float, str]]:
        """Return the screens, each with the seconds that it stays."""
        times = [when for when, _ in self._seen]
        stays = [min(LONGEST, after - before) for before, after in itertools.pairwise(times)]
        return list(zip([*stays, LAST], (screen for _, screen in self._seen), strict=True))


def main() -> None:
    """Type the README's lines that call hpcrun, beside the files that it shows."""
    found = list(first_minute.blocks((ROOT / "README.md").read_text()))
    with tempfile.TemporaryDirectory() as name:
        home = Path(name, "first")
        home.mkdir()
        # A laptop, which has no Slurm.
        programs = Path(name, "programs")
        programs.mkdir()
        for program in ("cat", "hostname", "sh", "tmux"):
            (programs / program).symlink_to(shutil.which(program) or program)
        for block in found:
            if block.file:
                (home / block.file).write_text(block.text)
        environment = {
            "HOME": name,
            "PATH": f"{Path(sys.executable).parent}:{programs}",
            **{"PS1": PROMPT, "ENV": "", "HPCRUN_ROOT": ""},
        }
        size = {"columns": COLUMNS, "rows": ROWS}
        shell = ["sh", "-c", "cd ../first && exec sh -i"]
        with Tmux(shell, Path(name, "tmux"), env=environment, **size) as terminal:
            recorder = Recorder(terminal, {name: "/home/ada", str(ROOT): "…"})
            time.sleep(1)
            typed = [one.line for one in first_minute.script(found)[1] if one.is_ours]
            for line in [typed[0], "cat train.yaml", *typed[1:]]:
                recorder.type(line)
                time.sleep(LONGEST)
    PAGE.write_text(film(recorder.frames()))


if __name__ == "__main__":
    main()

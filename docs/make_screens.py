"""Write docs/images/top-*.svg: the real `hpcrun top` in a real terminal (tmux), of a made study.

python docs/make_screens.py
"""

from __future__ import annotations

import io
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

IMAGES = Path(__file__).with_name("images")
sys.path.insert(0, str(IMAGES.parent.parent))

from tests.support import command  # noqa: E402 - not before the line above
from tests.support.tmux import Tmux  # noqa: E402
from tests.support.top_study import TopStudy  # noqa: E402

THEME = TerminalTheme(
    (24, 26, 31),
    (205, 209, 214),
    [
        *((40, 42, 54), (235, 110, 110), (125, 200, 130), (225, 190, 110)),
        *((110, 165, 235), (195, 140, 220), (110, 200, 205), (205, 209, 214)),
    ],
    [
        *((110, 115, 125), (245, 130, 130), (145, 220, 150), (240, 210, 130)),
        *((130, 185, 250), (215, 160, 240), (130, 220, 225), (240, 242, 245)),
    ],
)
# rich's frame, without the font that it would load from the network.
FRAME = """\
<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, DejaVu Sans Mono, Menlo, Consolas, monospace;
  font-size: {char_height}px; line-height: {line_height}px; }}
.{unique_id}-title {{ font-size: 18px; font-weight: bold; font-family: arial; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" /></clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def picture(screen: str, columns: int, title: str) -> str:
    """Draw what a terminal shows, with its colours."""
    console = Console(
        width=columns,
        record=True,
        file=io.StringIO(),
        color_system="truecolor",
        legacy_windows=False,
    )
    for line in screen.rstrip("\n").split("\n"):
        console.print(Text.from_ansi(line), no_wrap=True, crop=True, highlight=False)
    return console.export_svg(title=title, theme=THEME, code_format=FRAME, unique_id="t")


def main() -> None:
    """Type at the screen, and draw it."""
    with tempfile.TemporaryDirectory() as directory:
        study = TopStudy(Path(directory))
        top = command.argv("top")
        for columns, rows in ((80, 24), (200, 50)):
            where = Path(directory, f"terminal-{columns}")
            with Tmux(top, where, columns=columns, rows=rows, env=study.env) as terminal:
                end = ["step 90 of 100"] if rows > 40 else []
                terminal.wait_for("ablation/7", "▁", *end)
                screens = {"": terminal.colored}
                if columns == 80:
                    terminal.press("2")
                    terminal.wait_for("WHY")
                    screens["-queue"] = terminal.colored
                    terminal.press("3")
                    terminal.wait_for("212 GiB")
                    screens["-nodes"] = terminal.colored
                terminal.press("q")
            for name, screen in screens.items():
                path = IMAGES / f"top-{columns}x{rows}{name}.svg"
                path.write_text(picture(screen, columns, "hpcrun top"))


if __name__ == "__main__":
    main()

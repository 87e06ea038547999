"""What may reach this terminal of what a login node sends, whoever has written it there.

Text, colours, and for screens the cursor, erasing, scrolling and the modes of the keyboard and the
mouse. Whatever makes a terminal answer, write files, change its title, its clipboard or its keys is
left out (ECMA-48; xterm's control sequences).
"""

from __future__ import annotations

import codecs
import re

from hpcrun.text import visible

# What ends a screen that ended without doing so itself: mouse, paste, cursor, colours, screen.
RESTORED = b"\x1b[?1000;1002;1003;1006;1015;2004;1004l\x1b[<u\x1b[?25h\x1b[0m"
_PLAIN = b"\x1b[0m"
_LEAVE_SCREEN = b"\x1b[?1049l"

_SEQUENCE = re.compile(
    # CSI; strings (OSC, DCS, SOS, PM, APC) up to their end; other escapes; their C1 forms.
    r"\x1b\[[0-?]*[ -/]*[@-~]"
    r"|\x1b[\]PX^_][^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)"
    r"|\x1b[ -/]*[0-OQ-WYZ\\`-~]"
    r"|[\x80-\x9f]"
)
_UNFINISHED = re.compile(r"\x1b(?:\[[0-?]*[ -/]*|[\]PX^_][^\x07\x1b\x9c]*\x1b?|[ -/]*)?$")
_COLOR = re.compile(r"\x1b\[[0-9;:]*m")
_CURSOR = re.compile(r"\x1b\[[0-9;]*[ABCDEFGHJKLMPSTX@dfrsu]|\x1b[78=>M]|\x1b\(B")
_MODES = re.compile(r"\x1b\[\?([0-9;]+)[hl]")
_HARMLESS_MODES = frozenset(
    {1, 7, 12, 25, 47, 1000, 1002, 1003, 1004, 1006, 1015, 1047, 1048, 1049, 2004, 2026}
)
_KEYS = re.compile(r"\x1b\[[<>=][0-9;]*u")
_MOVES = re.compile(r"([\r\b\x07])")
# A string without an end is shown from here on.
_LONGEST = 4096


class TerminalFilter:
    """Passes on a stream of bytes as far as it is harmless; ``screens`` may move the cursor."""

    def __init__(self, *, screens: bool) -> None:
        self._screens = screens
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""
        self._in_screen = self._has_modes = False
        self._color = ""

    def feed(self, data: bytes, *, final: bool = False) -> bytes:
        """Return what may be shown of the next bytes; the beginning of a sequence waits."""
        text = self._rest + self._decoder.decode(data, final)
        self._rest = ""
        unfinished = _UNFINISHED.search(text)
        if unfinished and not final and len(text) - unfinished.start() < _LONGEST:
            text, self._rest = text[: unfinished.start()], text[unfinished.start() :]
        shown = []
        at = 0
        for found in _SEQUENCE.finditer(text):
            shown.append(self._text(text[at : found.start()]))
            if self._is_harmless(found[0]):
                shown.append(found[0])
            at = found.end()
        shown.append(self._text(text[at:]))
        return "".join(shown).encode("utf-8", "replace")

    def end(self) -> bytes:
        """Return the rest, and what puts a terminal right that a screen was left on."""
        rest = self.feed(b"", final=True)
        if self._has_modes:
            return rest + RESTORED + (_LEAVE_SCREEN if self._in_screen else b"")
        return rest + (_PLAIN if self._color else b"")

    def _is_harmless(self, sequence: str) -> bool:
        if _COLOR.fullmatch(sequence):
            self._color = sequence.strip("\x1b[0;m")
            return True
        if not self._screens:
            return False
        if modes := _MODES.fullmatch(sequence):
            numbers = {int(one) for one in modes[1].split(";") if one}
            if 1049 in numbers:
                self._in_screen = sequence.endswith("h")
            harmless = numbers <= _HARMLESS_MODES
        elif _KEYS.fullmatch(sequence):
            harmless = True
        else:
            return _CURSOR.fullmatch(sequence) is not None
        self._has_modes = self._has_modes or harmless
        return harmless

    def _text(self, text: str) -> str:
        """Return text whose other characters that act on a terminal are shown."""
        if not self._screens:
            return visible(text.replace("\r\n", "\n"))
        parts = _MOVES.split(text)
        parts[::2] = map(visible, parts[::2])
        return "".join(parts)

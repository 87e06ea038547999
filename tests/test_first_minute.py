"""The README's first minutes: its lines as printed, and no others."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench import first_minute
from bench.first_minute import Command

ROOT = Path(__file__).parent.parent


def test_the_readme_opens_with_two_commands_and_says_what_is_typed_next() -> None:
    text = (ROOT / "README.md").read_text()
    opening = text[: text.index(first_minute.FIRST)]
    lines = opening.partition("```sh\n")[2].partition("```")[0].splitlines()
    assert [line.partition("#")[0].strip() for line in lines] == ["make demo", "make test"]
    shell, commands = first_minute.script(list(first_minute.blocks(text)))
    typed = [command.line for command in commands]
    assert typed[2:4] == ["pip install .", "hpcrun run hello"]
    for name in ("train.py", "train.yaml"):
        assert f"cat > {name} <<'README'\n" in shell
    # Nothing that a later line needs is left to be guessed, and each block's output is printed.
    assert [command.line for command in commands if command.expected] == [typed[3], typed[-1]]
    assert any("--fault kill-rank" in line for line in typed)


def test_what_is_printed_is_compared_but_for_its_numbers() -> None:
    expected = ["hello ships: …/hello.yaml", "…", "train/0   0.01  1,234 s", ""]
    printed = "hello ships: /a/hello.yaml\r\n\x1b[1mother\x1b[0m\r\ntrain/7 5  9 s\r\n"
    assert first_minute.missing(expected, printed) is None
    assert first_minute.missing(expected[::-1], printed) == expected[0]
    assert first_minute.missing(["train/0  lr=0.01"], printed) == "train/0  lr=0.01"


def _session(silence: float, seconds: float, code: int = 0) -> list[Command]:
    lines = ("pip install .", "hpcrun run hello", "hpcrun why train-drill")
    return [
        Command(line, 0, began=at * seconds, ended=(at + 1) * seconds, code=code, silence=silence)
        for at, line in enumerate(lines)
    ]


@pytest.mark.parametrize(
    ("silence", "seconds", "code", "wrong"),
    [
        (2.9, 29.0, 0, []),
        (3.1, 29.0, 0, ["silence: 3.1 s, and 3 s are the limit"]),
        (1.0, 31.0, 0, ["first_run: 62.0 s, and 60 s are the limit"]),
        (1.0, 1.0, 1, ["`hpcrun why train-drill` ended with 1"]),
    ],
)
def test_a_broken_limit_fails(silence: float, seconds: float, code: int, wrong: list[str]) -> None:
    commands = _session(silence, seconds)
    commands[-1].code = code
    assert first_minute.verdicts(commands)[1] == wrong


@pytest.mark.skipif(os.environ.get("HPCRUN_THOROUGH") != "1", reason="HPCRUN_THOROUGH=1: 80 s")
def test_a_new_user() -> None:
    argv = [sys.executable, "-m", "bench.first_minute"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    assert done.stdout.endswith("as the README prints it\n")

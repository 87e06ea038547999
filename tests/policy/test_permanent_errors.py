"""Which errors no new start mends, as a table over what a rank leaves."""

from __future__ import annotations

from typing import Any

import pytest

from hpcrun.policy import permanent_errors

NAMED = ("train.py", "--config=conf/a.yaml", "--data", "/data/corpus")
TRACE = 'Traceback (most recent call last):\n  File "{}", line 3, in <module>\n'
USAGE = ["usage: train.py [-h] [--lr LR]", "train.py: error: unrecognized arguments: --rl 3"]


def raised(exception: str, message: str, file: str = "/code/train.py") -> dict[str, Any]:
    found = {"exception": exception, "message": message, "traceback": TRACE.format(file)}
    return {"exit_code": 1, **found}


def ended(code: int | None, *lines: str, **more: Any) -> tuple[dict[str, Any], list[str]]:
    return {"exit_code": code, **more}, list(lines)


MISSING = "[Errno 2] No such file or directory: '{}'"
COMPILING = "Error building extension 'cpu_adam'"
INSTALLED = "/env/lib/python3.11/site-packages/numpy/core.py"

# What a rank leaves -> a part of the reason; whether it is the same on every node.
TABLE: dict[str, tuple[dict[str, Any] | tuple[dict[str, Any], list[str]], str, bool]] = {
    "a module": (
        raised("ModuleNotFoundError", "No module named 'wandbb'"),
        "a module is missing (No module named 'wandbb')",
        False,
    ),
    "a name of a module": (
        raised("ImportError", "cannot import name 'x' from 'y'"),
        "an import fails",
        False,
    ),
    "a syntax error of the code": (
        raised("SyntaxError", "invalid syntax (train.py, line 3)"),
        "the code has a SyntaxError (invalid syntax (train.py, line 3))",
        True,
    ),
    "an indentation": (raised("IndentationError", "unexpected indent"), "IndentationError", True),
    "a syntax error of a package": (
        raised("SyntaxError", "null bytes", INSTALLED),
        "SyntaxError",
        False,
    ),
    "a name": (raised("NameError", "name 'lr' is not defined"), "the code has a NameError", True),
    "a file of the arguments": (
        raised("FileNotFoundError", MISSING.format("conf/a.yaml")),
        "a file that its arguments name is missing (conf/a.yaml)",
        False,
    ),
    "a directory of the arguments": (
        raised("FileNotFoundError", MISSING.format("/data/corpus")),
        "(/data/corpus)",
        False,
    ),
    "arguments": (ended(2, *USAGE), "refuses its arguments (train.py: error: unrecog", True),
    "arguments under torchrun": (
        ended(1, *USAGE, "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: "),
        "the program refuses its arguments",
        True,
    ),
    "click's arguments": (
        ended(2, "Usage: train.py [OPTIONS]", "Error: No such option: --rl"),
        "the program refuses its arguments (Error: No such option: --rl)",
        True,
    ),
    "an argument's file": (
        ended(2, "usage: x", "x: error: argument -c: can't open 'a': [Errno 2] No such file"),
        "the program refuses its arguments",
        False,
    ),
    "arguments of HfArgumentParser": (
        raised("ValueError", "Some arguments are not used by the HfArgumentParser: ['x']"),
        "the program refuses its arguments",
        True,
    ),
    "a script": (
        ended(2, "python: can't open file '/w/trian.py': [Errno 2] No such file or directory"),
        "its script is missing",
        False,
    ),
    "a module behind -m": (
        ended(1, "/env/bin/python3.11: No module named train"),
        "a module is missing (/env/bin/python3.11: No module named train)",
        False,
    ),
    "a part of a module behind -m": (
        ended(
            1,
            "/env/bin/python: Error while finding module specification for 'a.b' "
            "(ModuleNotFoundError: No module named 'a')",
        ),
        "a module is missing",
        False,
    ),
    "the shell's syntax": (
        ended(2, "train.sh: line 3: syntax error near unexpected token `fi'"),
        "the script has a syntax error",
        True,
    ),
    "a command": (
        ended(127, "train.sh: line 3: acelerate: command not found"),
        "a command is not found (train.sh: line 3: acelerate: command not found)",
        False,
    ),
    "a library": (
        ended(127, "x: error while loading shared libraries: libcudart.so.12: cannot open"),
        "a command is not found",
        False,
    ),
    "no permission": (
        ended(126, "bash: ./train.sh: Permission denied"),
        "a command cannot be executed (bash: ./train.sh: Permission denied)",
        False,
    ),
    "the entry's command": (
        raised("HpcrunError", "the command './x' cannot be started: No such file or directory (y)"),
        "the command './x' cannot be started: No such file or directory",
        False,
    ),
    "what the session refuses": (
        raised("UsageError", "this pipeline trains in fp32 without ZeRO"),
        "its input is refused (this pipeline trains in fp32 without ZeRO)",
        True,
    ),
    "a compiler": (raised("RuntimeError", COMPILING), f"compiled ({COMPILING})", False),
    "a compiler whose output is long": (
        ended(1, f"RuntimeError: {COMPILING}: [1/3] c++", *["x.cpp:1: error"] * 50),
        "an extension cannot be compiled",
        False,
    ),
    "DeepSpeed's configuration": (
        raised("DeepSpeedConfigError", "Expected a string path"),
        "DeepSpeed refuses its configuration",
        True,
    ),
    "DeepSpeed's batch": (
        raised("AssertionError", "Check batch related parameters. train_batch_size is not"),
        "DeepSpeed refuses its configuration",
        True,
    ),
    "a key of DeepSpeed's": (
        raised("ValidationError", "1 validation error for DeepSpeedZeroConfig"),
        "DeepSpeed refuses its configuration",
        True,
    ),
}


@pytest.mark.parametrize("name", TABLE)
def test_what_no_new_start_mends(name: str) -> None:
    left, reason, anywhere = TABLE[name]
    failure, lines = left if isinstance(left, tuple) else (left, [])
    found = permanent_errors.find(failure, lines, NAMED)
    assert found is not None
    assert reason in found.reason
    assert found.anywhere == anywhere


OTHERS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "an error of its own": (raised("ValueError", "bad loss"), []),
    "a file that no argument names": (raised("FileNotFoundError", MISSING.format("x.pt")), []),
    "a module on storage that fails": (
        raised("ModuleNotFoundError", "No module named 'torch'"),
        ["OSError: [Errno 116] Stale file handle: '/home/a'"],
    ),
    "an import on storage that fails": (raised("ImportError", "x.so: Input/output error"), []),
    "a compiler on a full disk": (
        raised("RuntimeError", COMPILING),
        ["as: /tmp/x.o: No space left on device"],
    ),
    "a compiler that was killed": (
        raised("RuntimeError", COMPILING),
        ["c++: fatal error: Killed signal terminated program cc1plus"],
    ),
    "a warning of the compiler before another error": (
        raised("ValueError", "bad loss"),
        [f"RuntimeError: {COMPILING}"],
    ),
    "usage that was printed before another error": (raised("ValueError", "bad loss"), USAGE),
    "an exit code alone": ended(1, "no such token"),
    "2 without words": ended(2),
    "127 without words": ended(127),
    "126 without words": ended(126),
    "a signal": ended(None, *USAGE, signal="SIGKILL"),
    "saved": ended(75, *USAGE),
    "a good end": ended(0, *USAGE),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_another_start_may_mend(name: str) -> None:
    failure, lines = OTHERS[name]
    assert permanent_errors.find(failure, lines, NAMED) is None

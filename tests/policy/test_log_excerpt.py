"""The lines of a log's end that tell why a program ended."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hpcrun.policy.log_excerpt import BarFolder, LoggedEnd, end, excerpt, folded, is_bar


def bar(number: int) -> str:
    return f"Epoch 1: {number}%|███▌      | {number}/100 [00:01<00:07, 11.5it/s, lr=[0.1]]"


BARS = [
    bar(12),
    "  0%|          | 0/100 [00:00<?, ?it/s]",
    "12it [00:01, 11.5it/s]",
    "weights: 45.2MB [01:00:10, 4.5MB/s]",
    "100%|##########|",
    "Loading checkpoint shards: 100%|██████████| 2/2 [00:00<00:00,  2.5it/s]\x1b[A",
    " 12/100 ━━━━━━━━ 1s 10ms/step - loss: 0.5",
    "\x1b[1m 3/Unknown\x1b[0m \x1b[32m━━━\x1b[0m 1s",
    "12/100 [==>......] - ETA: 1s",
]
NO_BARS = [
    "",
    "| accuracy | 12%| 3 |",
    "step 12/100 [rank 1]",
    "[00:01] hello",
    "[12:34:56, 7] loss 2.5",
    "{'loss': 2.5, 'epoch': 0.1}",
    f"{bar(12)}Traceback (most recent call last):",
    "x" * 2_000 + bar(1),
]
TRACEBACK = [
    "Traceback (most recent call last):",
    '  File "train.py", line 7, in <module>',
    "    step()",
    "ValueError: batch 17 is bad",
]


def text(lines: list[str], end: str = "\n") -> bytes:
    return "".join(line + end for line in lines).encode()


@pytest.mark.parametrize("line", BARS)
def test_a_bar(line: str) -> None:
    assert is_bar(line.encode())
    assert BarFolder().feed_block(text([line])) == b"", "it waits for its next update"


def test_blocks_of_lines_that_begin_with_a_time_are_not_taken_apart() -> None:
    """Such logs were read at a tenth of the speed of others."""
    block = text([f"[12:34:{second}] INFO step {second} [rank 0]" for second in range(10, 60)])
    assert BarFolder().feed_block(block) is block


@pytest.mark.parametrize("line", NO_BARS)
def test_no_bar(line: str) -> None:
    assert not is_bar(line.encode())


@pytest.mark.parametrize("end", ["\n", "\r"])
def test_a_bar_after_the_cause_is_one_line(end: str) -> None:
    found = excerpt(text(["begun", *TRACEBACK]) + text([bar(n % 100) for n in range(5_000)], end))
    assert found == ["begun", *TRACEBACK, f"{bar(99)}  (the last of 5000 updates)"]


def test_the_cause_is_shown_where_other_lines_follow_it() -> None:
    after = [f"warning {number}" for number in range(400)]
    found = excerpt(text([*TRACEBACK, *after]))
    assert found == [*TRACEBACK, "… (385 lines)", *after[-15:]]
    assert excerpt(text(["CUDA error: out of memory", *after]))[0] == "CUDA error: out of memory"
    assert excerpt(text(after)) == after[-20:]


def test_a_traceback_is_shown_from_both_ends() -> None:
    calls = [f'  File "deep.py", line {number}, in f' for number in range(50)]
    ranked = [f"[rank0]: {line}" for line in (TRACEBACK[0], *calls, TRACEBACK[-1])]
    found = excerpt(text([*ranked, *("more" for _ in range(30))]))
    expected = [ranked[0], "… (41 lines)", *ranked[-10:], "… (23 lines)", *["more"] * 7]
    assert found == expected
    assert len(found) == 20


def test_a_traceback_on_the_line_of_a_bar_is_apart_from_it() -> None:
    written = "\r".join(bar(n) for n in range(90)).encode() + text(TRACEBACK)
    assert excerpt(written) == [bar(89), *TRACEBACK]


LAUNCHER = [
    "Traceback (most recent call last):",
    '  File "/bin/torchrun", line 8, in <module>',
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
    "train.py FAILED",
]
# name: (lines, the exception that a program ended with, and its message)
ENDS: dict[str, tuple[list[str], tuple[str, str] | None]] = {
    "a traceback": (["begun", *TRACEBACK], ("ValueError", "batch 17 is bad")),
    "with a few lines after it": ([*TRACEBACK, "wandb: synced"], ("ValueError", "batch 17 is bad")),
    "of a module, without a message": (
        [*TRACEBACK[:3], "torch.OutOfMemoryError"],
        ("OutOfMemoryError", ""),
    ),
    "of one rank of several": (
        [f"[rank0]: {line}" for line in TRACEBACK],
        ("ValueError", "batch 17 is bad"),
    ),
    "a launcher's after it": ([*TRACEBACK, *LAUNCHER], ("ValueError", "batch 17 is bad")),
    "a launcher's long after it": (
        [*TRACEBACK, *["x"] * 90, *LAUNCHER],
        ("ValueError", "batch 17 is bad"),
    ),
    "a launcher's alone": (LAUNCHER, None),
    "behind more calls than are shown": (
        [TRACEBACK[0], *TRACEBACK[1:3] * 30, TRACEBACK[-1]],
        ("ValueError", "batch 17 is bad"),
    ),
    "with a tracker's summary after it": (
        [*TRACEBACK, *["wandb: loss ▁▂"] * 40, "[rank0]:[W1127 08:00:00.1 x.cpp:1] warning"],
        ("ValueError", "batch 17 is bad"),
    ),
    "of a group of exceptions": (
        [
            "  + Exception Group Traceback (most recent call last):",
            '  |   File "a.py", line 1, in <module>',
            "  | ExceptionGroup: two (1 sub-exception)",
            "  +-+---------------- 1 ----------------",
            "    | Traceback (most recent call last):",
            '    |   File "a.py", line 1, in <module>',
            "    | ValueError: inner",
            "    +------------------------------------",
        ],
        ("ValueError", "inner"),
    ),
    "of the syntax": (['  File "a.py", line 1', "SyntaxError: bad"], ("SyntaxError", "bad")),
    "drawn into a box by Rich": (
        [
            "╭──────── Traceback (most recent call last) ────────╮",
            "│ /work/train.py:7 in <module>                      │",
            "│ ❱ 7 step()                                        │",
            "╰───────────────────────────────────────────────────╯",
            "RuntimeError: layer 7",
            "",
            "The above exception was the direct cause of the following exception:",
            "",
            "╭──────── Traceback (most recent call last) ────────╮",
            "│ /work/train.py:9 in <module>                      │",
            "╰───────────────────────────────────────────────────╯",
            "ValueError: batch 17 is bad",
        ],
        ("ValueError", "batch 17 is bad"),
    ),
    "written by loguru": (
        [TRACEBACK[0], "", "> " + TRACEBACK[1].strip(), "    step()", "", TRACEBACK[3]],
        ("ValueError", "batch 17 is bad"),
    ),
    "handled long before": ([*TRACEBACK, *["x"] * 90], None),
    "only a word": (["I met a ValueError: bad"], None),
    "words like an exception's": (["ValueError: printed"], None),
    "nothing": ([], None),
}


@pytest.mark.parametrize("name", ENDS)
def test_the_exception_that_a_program_ended_with(name: str) -> None:
    lines, expected = ENDS[name]
    found = end(text(lines))
    assert (found.exception and (found.exception, found.message)) == expected


def test_a_line_is_what_a_terminal_shows_and_bounded() -> None:
    assert excerpt(b"one\rtwo\r\nthree\r") == ["two", "three"]
    (line,) = excerpt(b"x" * 1_000_000)
    assert len(line) < 2_100
    assert excerpt(b"") == []
    assert folded(b"a\n\nb\n") == [b"a", b"", b"b"]


def test_bars_are_folded_over_blocks() -> None:
    folder = BarFolder()
    assert folder.feed_block(text(["a", bar(1), bar(2)])) == b"a\n"
    assert folder.feed_block(text([bar(3)])) == b""
    shown = f"{bar(3)}  (the last of 3 updates)"
    assert folder.feed_block(b"b\n") == text([shown, "b"])
    assert folder.feed_block(text([bar(4), "c"])) == text([bar(4), "c"])
    assert folder.flush() == []


def torchrun(
    code: str, rank: int = 0, told: str = "To enable traceback see: https://x"
) -> list[str]:
    """Return the last lines of torchrun 2.13, its own traceback shortened."""
    return [
        f"E1127 08:19:24.117000 30989 torch/distributed/elastic/multiprocessing/api.py:1002] "
        f"failed (exitcode: {code}) local_rank: {rank} (pid: 7) of binary: /bin/python",
        "Traceback (most recent call last):",
        '  File "/bin/torchrun", line 8, in <module>',
        "    sys.exit(main())",
        "             ^^^^^^",
        '  File "/lib/torch/distributed/run.py", line 1028, in main',
        "    run(args)",
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
        "=" * 60,
        "train.py FAILED",
        "-" * 60,
        "Failures:",
        "  <NO_OTHER_FAILURES>",
        "-" * 60,
        "Root Cause (first observed failure):",
        "[0]:",
        "  time      : 2026-11-27_08:19:24",
        "  host      : n1",
        f"  rank      : {rank} (local_rank: {rank})",
        f"  exitcode  : {code} (pid: 7) " + (" (SIGKILL)" if code == "-9" else ""),
        "  error_file: <N/A>",
        *f"  traceback : {told}".split("\n"),
        "=" * 60,
    ]


DEEPSPEED = "[2026-11-27 08:22:08,713] [{}] [launch.py:253:sigkill_handler] {}"
ACCELERATE = [
    "Traceback (most recent call last):",
    '  File "/lib/accelerate/commands/launch.py", line 999, in simple_launcher',
    "    raise subprocess.CalledProcessError(returncode=process.returncode, cmd=cmd)",
]
CALLED = "subprocess.CalledProcessError: Command '['python', 'a.py']' {}"
SPAWNED = "torch.multiprocessing.spawn.ProcessExitedException: process 0 terminated with "
BAD = LoggedEnd("ValueError", "batch 17 is bad", 1)
KILLED = LoggedEnd(signal="SIGKILL")
RANK_1 = [f"[rank1]: {line}" for line in TRACEBACK]
RANK_0 = [
    f"[rank0]: {line}" for line in (*TRACEBACK[:3], "RuntimeError: Connection closed by peer")
]
# name: (lines, how the process ended that a launcher had started)
REPORTS: dict[str, tuple[list[str], LoggedEnd]] = {
    "torchrun's": ([*TRACEBACK, *torchrun("1")], BAD),
    "torchrun's, of a rank that another one followed": (
        [*RANK_1, *RANK_0, *torchrun("1", 1)],
        BAD,
    ),
    "torchrun's, of a signal": ([*TRACEBACK, *["x"] * 9, *torchrun("-9")], KILLED),
    "torchrun's, of another exit code": ([*TRACEBACK, *torchrun("3")], LoggedEnd(exit_code=3)),
    "torchrun's, with the traceback in it": (
        torchrun("1", 0, "\n  ".join([*TRACEBACK, ""])),
        LoggedEnd("ValueError", "batch 17 is bad"),
    ),
    "accelerate's": (
        [*TRACEBACK, *ACCELERATE, CALLED.format("returned non-zero exit status 1.")],
        BAD,
    ),
    "accelerate's, of a signal": (
        [*ACCELERATE, CALLED.format("died with <Signals.SIGKILL: 9>.")],
        KILLED,
    ),
    "a program's own command that failed": (
        [*TRACEBACK[:3], CALLED.format("returned non-zero exit status 3.")],
        LoggedEnd(
            "CalledProcessError", "Command '['python', 'a.py']' returned non-zero exit status 3."
        ),
    ),
    "DeepSpeed's": (
        [
            *TRACEBACK,
            DEEPSPEED.format("INFO", "Killing subprocess 7"),
            DEEPSPEED.format("ERROR", "['python', '-u', 'a.py'] exits with return code = 1"),
        ],
        BAD,
    ),
    "DeepSpeed's, of a signal": (
        [DEEPSPEED.format("ERROR", "['python', '-u', 'a.py'] exits with return code = -9")],
        KILLED,
    ),
    "torch.multiprocessing's": ([*TRACEBACK[:3], SPAWNED + "signal SIGKILL"], KILLED),
    "torch.multiprocessing's, of an exit code": (
        [*TRACEBACK[:3], SPAWNED + "exit code 3"],
        LoggedEnd(exit_code=3),
    ),
    "a shell's": (["./run.sh: line 3: 12345 Killed                  python a.py"], KILLED),
    "a shell's, of its helper": (
        [*TRACEBACK, "./run.sh: line 9: 123 Terminated  tensorboard"],
        LoggedEnd("ValueError", "batch 17 is bad"),
    ),
    "srun's": (
        ["srun: error: n1: task 1: Killed", "srun: error: n2: task 0: Terminated"],
        KILLED,
    ),
    "srun's, of an exit code": (
        [*TRACEBACK, "srun: error: n1: task 1: Exited with exit code 1"],
        BAD,
    ),
    "make's, of make": (
        [
            *TRACEBACK,
            "make[1]: *** [Makefile:2: train] Error 1",
            "make[1]: Leaving directory '/work'",
            "make: *** [Makefile:5: all] Error 2",
        ],
        BAD,
    ),
    "make's, of a signal": (
        ["make: *** [Makefile:2: train] Segmentation fault (core dumped)"],
        LoggedEnd(signal="SIGSEGV"),
    ),
    "make's, of its own code": (["make: *** [Makefile:2: train] Error 2"], LoggedEnd()),
    "mpirun's": (["mpirun noticed that process rank 1 exited on signal 9 (Killed)."], KILLED),
    "one long before the end": (
        ["srun: error: n1: task 1: Exited with exit code 2", *["x"] * 30, *TRACEBACK],
        LoggedEnd("ValueError", "batch 17 is bad"),
    ),
    "one before a traceback": (
        ["srun: error: n1: task 1: Exited with exit code 2", *TRACEBACK],
        LoggedEnd("ValueError", "batch 17 is bad"),
    ),
}


@pytest.mark.parametrize("name", REPORTS)
def test_what_a_launcher_reports_of_its_process(name: str) -> None:
    lines, expected = REPORTS[name]
    assert end(text(lines)) == expected


def test_torchrun_as_it_is_installed(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    script = tmp_path / "killed.py"
    script.write_text("import os\nos.kill(os.getpid(), 9)\n")
    argv = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "1", str(script)]
    done = subprocess.run(
        argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, timeout=120
    )
    assert end(done.stdout) == KILLED, done.stdout.decode()

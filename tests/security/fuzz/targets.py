"""The targets: what is broken, and which command or function reads it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.security.fuzz import mutations
from tests.security.fuzz.mutations import Draw
from tests.security.fuzz.world import BYSTANDER, KINDS, VICTIMS, Finding, World
from tests.support.event_files import event, tensor_event

V, B, RUN, OUT, SPEC = "VICTIM", BYSTANDER, "VICTIM/0", "OUT", "SPEC"

# Commands over a broken experiment and a bystander, whose rows must stay. An argument in capitals
# is filled in.
READING: tuple[tuple[str, ...], ...] = (
    ("status", V, B),
    ("status", V, B, "--json"),
    ("status", V, B, "--json"),
    ("status", V, B, "--cost", "--json"),
    ("why", V, B),
    ("why", V, B, "--json"),
    ("results", V, B),
    ("results", V, B, "--format", "json"),
    ("results", V, B, "--format", "csv"),
    ("results", V, B, "--format", "latex"),
    ("list",),
    ("list", "--json"),
    ("logs", V, B, "--tail", "3"),
    ("logs", V, B, "--tail", "2", "--stream", "all", "--attempt", "all"),
    ("logs", V, B, "--tail", "2", "--timestamps", "--json"),
    ("export", V, B, "--dry-run", "--logs", "-o", OUT),
)
# Commands over the broken experiment alone, or that may refuse as a whole.
OTHERS: tuple[tuple[str, ...], ...] = (
    ("status",),
    ("status", RUN, "--cost"),
    ("status", V, "--where", "seed=1"),
    ("why", RUN),
    ("results", V, "--over-repeats"),
    ("results", V, "--filter", "state=completed", "--sort", "state"),
    ("show", RUN),
    ("show", RUN, "--json"),
    ("show", RUN, "--config"),
    ("show", RUN, "--script"),
    ("show", RUN, "--deepspeed"),
    ("show", RUN, "--code", "--json"),
    ("show", RUN, "--path"),
    ("diff", V, B),
    ("diff", B, RUN, "--json"),
    ("logs", RUN, "--since", "30m", "--timestamps"),
    ("logs", RUN, "--rank", "0", "--node", "0"),
    ("clean", V, B, "--dry-run", "--logs", "--checkpoints", "all"),
    ("clean", V, "--dry-run", "--json"),
    ("delete", V, B, "--dry-run"),
    ("delete", V, "--dry-run", "--json"),
    ("rename", V, "other", "--dry-run"),
    ("cancel", V, B, "--dry-run"),
    ("cancel", V, "--dry-run", "--json"),
    ("requeue", V, B, "--dry-run"),
    ("requeue", RUN, "--dry-run", "--json"),
    ("4711_2",),
)
REPORT = ("report", V, B, "--force", "-o", OUT)
SUBMIT = ("submit", SPEC, "--dry-run")
SPECS = {"half": "half.yaml", "study": "study.yaml", "after": "after.yaml"}

Breaker = Callable[[Draw, bytes], bytes]
Target = Callable[[World, Draw], None]

# Kind of file -> its place in an experiment, how it is broken, its share of the cases, and the
# commands that look at it closely.
FILES: dict[str, tuple[str, Breaker, int, tuple[tuple[str, ...], ...]]] = {
    "ledger": ("runs/*/ledger.jsonl", mutations.records, 10, (SUBMIT,)),
    "journal": ("submissions/*/journal.jsonl", mutations.records, 10, (SUBMIT,)),
    "plan": ("submissions/*/plan.json", mutations.document, 10, (SUBMIT,)),
    "metrics": ("runs/*/attempts/*/metrics.jsonl", mutations.records, 8, (REPORT,)),
    "manifest": (
        "runs/*/checkpoints/*/manifest.json",
        mutations.document,
        8,
        (("clean", V, "--dry-run", "--checkpoints", "all"), ("show", RUN, "--json")),
    ),
    "telemetry": ("runs/*/attempts/*/telemetry-*.jsonl", mutations.records, 4, (REPORT,)),
    "submission": (
        "submissions/*/submission.json",
        mutations.document,
        6,
        (("list",), ("show", RUN, "--code"), ("diff", V, B, "--code")),
    ),
    "session": ("runs/*/attempts/*/session.jsonl", mutations.records, 8, (REPORT,)),
    "intent": ("runs/*/intent.json", mutations.document, 4, (SUBMIT, ("status", V, B, "--json"))),
    "log sizes": (
        "runs/*/attempts/*/log-sizes.jsonl",
        mutations.records,
        3,
        (("logs", RUN, "--since", "2026-11-23T05:34:00"), ("logs", RUN, "--timestamps")),
    ),
    "other records": (
        "runs/*/attempts/*/*.json",
        mutations.document,
        4,
        (("show", RUN, "--deepspeed"), ("why", RUN)),
    ),
    "log": ("runs/*/attempts/*/*.log", mutations.blob, 3, (("logs", V, B, "--tail", "3"),)),
    "batch log": ("submissions/*/*.log", mutations.blob, 1, (("logs", RUN, "--stream", "batch"),)),
    "tracking": ("runs/*/tracking/*.json", mutations.document, 1, (("show", RUN, "--json"),)),
    "script": ("submissions/*/*.sbatch", mutations.blob, 1, (("show", RUN, "--script"),)),
    "annotations": (
        "annotations/*.jsonl",
        mutations.records,
        4,
        (("tag", V), ("note", V, "--json"), ("status", V, "--columns", "tags,notes")),
    ),
    "archive": (
        "code/*.tar.gz",
        mutations.blob,
        1,
        (("show", RUN, "--code"), ("diff", V, B, "--code")),
    ),
}


def _files(world: World, victim: str, pattern: str) -> list[Path]:
    return world.files(victim, pattern)


def _broken_file(kind: str) -> Target:
    """Make the target of one kind of file."""
    pattern, breaker, _, closely = FILES[kind]

    def target(world: World, draw: Draw) -> None:
        rng = draw.rng
        victims = [one for one in VICTIMS if _files(world, one, pattern)]
        victim = rng.choices(victims, [VICTIMS[one] for one in victims])[0]
        path = rng.choice(_files(world, victim, pattern))
        argv = rng.choice(closely) if rng.random() < 0.08 else _command(rng)
        if rng.random() < 0.03:
            data: bytes | str = rng.choice(sorted(KINDS))
            draw.note(f"{data} in place of the file")
        else:
            data = breaker(draw, path.read_bytes())
            if kind == "manifest" and rng.random() < 0.7:
                data = mutations.signed(data)
        draw.note(f"{path.relative_to(world.root(victim))}: {data[:3000]!r}")
        _read_broken(world, draw, kind, victim, path, data, argv)

    return target


def _command(rng: Any) -> tuple[str, ...]:
    kind = rng.random()
    if kind < 0.55:
        return rng.choice(READING)
    if kind < 0.99:
        return rng.choice(OTHERS)
    return REPORT


def _read_broken(
    world: World,
    draw: Draw,
    kind: str,
    victim: str,
    path: Path,
    data: bytes | str,
    argv: tuple[str, ...],
) -> None:
    """Type a command beside a broken file, or call the functions that read it."""
    if kind in _DIRECT and draw.rng.random() < 0.6:
        draw.note("read by the functions that own it")
        with world.broken(path, data):
            _directly(kind, path)
        return
    number = next((part for part in path.parts[path.parts.index(victim) + 2 :]), "0")
    run = number if "runs" in path.parts and number.isdigit() else "0"
    filled = tuple(
        {V: victim, RUN: f"{victim}/{run}", OUT: str(world.directory / "out.tar.gz")}.get(
            word, word
        )
        for word in argv
    )
    if filled[0] == "report":
        filled = (*filled[:-1], str(world.directory / "out.html"))
    if SPEC in filled:
        filled = tuple(SPECS.get(victim, "after.yaml") if w == SPEC else w for w in filled)
    draw.note(f"hpcrun {' '.join(filled)}")
    watched = argv in READING
    if watched:
        world.learn(victim, filled)
    with world.broken(path, data):
        answer = world.call(*filled, root=world.root(victim))
        if "--json" in filled and answer.code == 0 and "logs" not in filled:
            world.json_of(answer)
        if watched:
            world.bystanders(victim, filled, answer)
            if victim not in answer.out + answer.err:
                raise Finding("a broken experiment vanished without a word", " ".join(filled))


def _directly(kind: str, path: Path) -> None:
    """Read a broken file by the functions that own it, as programs on compute nodes do too."""
    from hpcrun.errors import HpcrunError
    from hpcrun.observe.read import metric_curves, node_usage
    from hpcrun.policy import causes, recovery
    from hpcrun.run.job import evidence
    from hpcrun.run.tracking.metrics_feed import FeedPosition, read_after
    from hpcrun.state import history, journal, ledger, manifest, session_log, submission_facts
    from hpcrun.state.layout import AttemptPaths, RunPaths, SubmissionPaths
    from hpcrun.state.spec.experiment import Recovery

    attempt, submission = AttemptPaths(path.parent), SubmissionPaths(path.parent)
    run = attempt.run if path.parent.parent.name == "attempts" else RunPaths(path.parent)
    with contextlib.suppress(HpcrunError):
        if kind == "ledger":
            ledger.faults(run)
            if attempts := ledger.read(run):
                recovery.decide(attempts, Recovery())
        elif kind == "intent":
            ledger.intent(run)
        elif kind == "journal":
            journal.read(submission)
        elif kind == "plan":
            with contextlib.suppress(FileNotFoundError):
                for one in history.read_plan(submission).runs:
                    _ = one.recovery, one.resources, one.environment, one.checkpoint, one.nodes
        elif kind == "submission":
            submission_facts.describe(submission)
        elif kind == "manifest":
            manifest.scan(path.parent.parent)
        elif kind == "telemetry":
            node_usage.read(run, 1)
        elif kind in ("metrics", "session"):
            evidence.progress(run, attempt)
            metric_curves.read(run)
            list(read_after(run, FeedPosition()))
            session_log.read(attempt)
        elif kind in ("other records", "log"):
            orphaned = evidence.orphaned(attempt) or {}
            lost = tuple(orphaned.get("lost_nodes") or ())
            failure = evidence.failure(attempt, None)
            causes.decide(causes.Evidence(exit_code=1, failure=failure, lost_nodes=lost))


_DIRECT = (
    *("ledger", "intent", "journal", "plan", "submission", "manifest", "telemetry", "metrics"),
    *("session", "other records", "log"),
)


# Names that a stranger may give to what lies in a tree that others read.
NAMES = (
    *("²", "٣", "x", "-1", "0", "00", "9999999999999999999999", "1e3", " 1", "1 "),
    *("\x1b[31m", "a\nb"),
    *("--help", "-rf", "a" * 200, "\udcff\udcfe", "\u202egnp", ".hidden", "[red]", "%s"),
    *("99", "1\t"),
)
DIRECTORIES = (
    *("", "submissions", "runs", "runs/0", "runs/0/attempts", "runs/0/attempts/1", "submissions/1"),
    *("runs/0/checkpoints", "runs/0/tracking", "code", "submit.lock", ".hpcrun"),
)
PATTERNS = (
    *("{}", "{}", "{}", "rank-{}.log", "telemetry-{}.jsonl", "agent-{}.log"),
    *("exit-{}.json", "slurm-{}.log"),
    *("step-{}-a1", "step-00000001-a{}", "tracker-{}.log", "stacks-{}.txt"),
    *("script-{}.sbatch", "{}.tar.gz"),
)
# A name, or the key of a condition with its sign.
_OFFERED = re.compile(r"[A-Za-z][\w.+-]*(/\d+)?|[A-Za-z][\w./+-]*[<>=~]+", re.ASCII)


def names(world: World, draw: Draw) -> None:
    """Odd names and odd kinds of files in the tree, and what completion offers."""
    rng = draw.rng
    victim = rng.choice(sorted(VICTIMS))
    home = world.root(victim)
    parent = home if rng.random() < 0.3 else home / victim / rng.choice(DIRECTORIES)
    path = parent / rng.choice(PATTERNS).format(rng.choice(NAMES))
    if path.exists() or path.is_symlink() or not parent.is_dir():
        path = home / (rng.choice(NAMES) + "z")
    draw.note(f"{path.relative_to(home)!s:.300}")
    kind = rng.choice(["a copy", "a file", *KINDS])
    draw.note(kind)
    try:
        if kind == "a copy":
            model = next((one for one in sorted(parent.iterdir()) if one.is_dir()), None)
            shutil.copytree(model or home / B, path, symlinks=True)
        elif kind == "a file":
            path.write_bytes(rng.choice(mutations.WHOLE[:12]))
        else:
            KINDS[kind](path)
    except OSError:
        return
    try:
        if rng.random() < 0.25:
            _complete(world, draw, home, rng.choice(["", victim[:2], f"{victim}/", "x/", "\x1b"]))
            return
        argv = _command(rng)
        filled = tuple(
            {V: victim, RUN: f"{victim}/0", OUT: str(world.directory / "out.tar.gz")}.get(w, w)
            for w in argv
        )
        draw.note(f"hpcrun {' '.join(filled)}")
        answer = world.call(*filled, root=home)
        if argv in READING and B not in answer.out:
            raise Finding("an odd name cost another one's rows", answer.err[-300:])
    finally:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _complete(world: World, draw: Draw, root: Path, incomplete: str) -> None:
    from hpcrun import tools

    if not tools.has("completion"):
        return
    from hpcrun.tools.completion import completion_answers

    draw.note(f"completion of {incomplete!r}")
    os.environ["HPCRUN_ROOT"] = str(root)
    try:
        rows = list(completion_answers.rows(f"hpcrun status {incomplete}"))
    finally:
        del os.environ["HPCRUN_ROOT"]
    offered = [row.split("\t") for row in rows]
    for _, word, about in offered:
        if not _OFFERED.fullmatch(word) or not about.isprintable():
            raise Finding("completion offers what is no name", repr((word, about))[:200])
    if incomplete == "" and B not in [word for _, word, _ in offered]:
        raise Finding("completion lost another experiment", repr(offered))


# Arguments, with the one that is broken in capitals.
TEXTS: dict[str, tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]] = {
    "where": (
        (
            ("status", "TEXT", "--json"),
            ("study", "study/0", "study/0-3,5", "7_3", "123", "./study"),
        ),
        (("logs", "TEXT", "--tail", "1"), ("study/0-2", "study/5", "4711_[0-3]")),
        (("cancel", "TEXT", "--dry-run"), ("study/0", "study/4-5")),
        (("show", "TEXT"), ("study/0", "study/4")),
        (("diff", "TEXT", "doomed"), ("study", "study/1")),
    ),
    "filter": (
        (
            ("status", "study", "--where", "TEXT"),
            ("lr=0.01", "config.seed=1", "fault=none", "x=[1]"),
        ),
        (("results", "study", "--filter", "TEXT"), ("state=completed", "eval/loss<2.5", "seed!=1")),
        (("results", "study", "--sort", "TEXT"), ("-eval/loss", "lr", "state")),
        (("results", "study", "--group-by", "TEXT"), ("seed", "lr,seed", "fault")),
        (("results", "study", "--columns", "TEXT"), ("lr,seed,eval/loss", "state")),
        (("submit", "after.yaml", "--dry-run", "--only", "TEXT"), ("new", "failed", "config.x=1")),
    ),
    "ranks": (
        (("logs", "study/0", "--rank", "TEXT"), ("0", "0,4-7", "0-1", "0-3,7", "1")),
        (("logs", "study/0", "--node", "TEXT", "--tail", "1"), ("0", "local0", "n[1-3]")),
        (("logs", "study/5", "--attempt", "TEXT", "--tail", "1"), ("1", "all", "2")),
        (("logs", "study/0", "--since", "TEXT"), ("90s", "10m", "2h", "2026-11-23T00:00:00", "1d")),
        (("logs", "study/0", "--tail", "TEXT"), ("1", "3")),
        (("clean", "study", "--dry-run", "--older-than", "TEXT"), ("12h", "30d", "1h")),
    ),
    "overrides": (
        (
            ("plan", "after.yaml", "TEXT"),
            (
                "resources.nodes=3",
                "+environment.variables.A=1",
                "name=x",
                "config={a: 1}",
                "resources.time=00:10:00",
                "+config.x='${hpcrun:run}'",
                "entry=[true]",
            ),
        ),
        (
            ("plan", "after.yaml", "+config={x: 0, y: 1}", "--sweep", "TEXT"),
            ("config.x=0.5,0.75", "resources.nodes=1,2", "config.x=0..3", "config.y=a,b,c"),
        ),
        (
            ("drill", "base.yaml", "--dry-run", "+name=hurt", "--fault", "TEXT"),
            ("kill-rank", "hang"),
        ),
    ),
}


def _broken_text(kind: str) -> Target:
    """Make the target of one kind of arguments."""

    def target(world: World, draw: Draw) -> None:
        argv, models = draw.rng.choice(TEXTS[kind])
        text = mutations.words(draw, draw.rng.choice(models))
        # No shell passes a NUL or half a character to a program.
        text = text.replace("\x00", "").encode("utf-8", "replace").decode()
        draw.note(f"hpcrun {' '.join(argv)} with {text[:3000]!r}")
        answer = world.call(*(text if w == "TEXT" else w for w in argv), root=world.root("study"))
        if "--json" in argv and answer.code == 0:
            world.json_of(answer)

    return target


def program_output(world: World, draw: Draw) -> None:
    """What a program writes and prints, which an agent reads."""
    from hpcrun.run.program.file_search import search
    from hpcrun.run.program.progress_source import Look, ProgressSource
    from hpcrun.run.program.save_watch import USUAL, SaveWatch
    from hpcrun.run.program.sources.csv_log import LightningCsv
    from hpcrun.run.program.sources.keras_bars import KerasBars
    from hpcrun.run.program.sources.log_lines import LogPattern, NewText
    from hpcrun.run.program.sources.progress_bars import ProgressBars
    from hpcrun.run.program.sources.tensorboard_events import TensorBoardEvents
    from hpcrun.run.program.sources.trainer_state import TrainerState

    rng, home = draw.rng, world.directory / "program"
    shutil.rmtree(home, ignore_errors=True)
    (home / "checkpoint-20").mkdir(parents=True)
    name, model = rng.choice(sorted(_PROGRAM.items()))
    data = (
        mutations.document(draw, model) if name.endswith(".json") else mutations.blob(draw, model)
    )
    draw.note(f"{name}: {data[:3000]!r}")
    path = home / name
    if rng.random() < 0.05:
        KINDS[rng.choice(sorted(KINDS))](path)
    else:
        path.write_bytes(data)
    sources: list[ProgressSource] = [LightningCsv(), TensorBoardEvents(), TrainerState()]
    sources += [ProgressBars(), KerasBars()]
    sources += [LogPattern(r"(?P<step>\S+)/(?P<total>\S+)(?P<loss>.*)")]
    saves = SaveWatch(USUAL, [home], ())
    text, files = NewText(path).read(is_last=True), tuple(search(home))
    for source in sources:
        with contextlib.suppress(OSError):
            for line in source.poll(Look(1.8e9, 1.7e9, text, files, is_last=True)).lines:
                json.dumps({"step": line.step, "time": line.time, **line.values})
    saves.look(files, 7, 1.8e9, is_last=True, ended_well=True)


_PROGRAM = {
    "events.out.tfevents.1.host": b"".join(
        event(step, 1.7e9 + step, loss=0.5, accuracy=0.25) for step in range(8)
    )
    + tensor_event(9, 1.7e9, "epoch_loss", 1.5),
    "checkpoint-20/trainer_state.json": json.dumps(
        {
            **{"global_step": 20, "max_steps": 500},
            "log_history": [{"step": step, "loss": 0.5, "epoch": 0.1} for step in (10, 20)],
        }
    ).encode(),
    "metrics.csv": b"epoch,step,loss\n0,49,1.5\n0,99,1.25\n",
    "latest": b"global_step120\n",
    "rank-00000.log": (
        "{'loss': '2.341', 'epoch': '0.1'}\n  2%|▏ | 12/500 [00:10<04:20,  3.7it/s]\r"
        "Epoch 1/3:  4%|▏ | 4/100 [00:10<04:20]\nstep 5/100 loss 0.5\n"
        "Epoch 2/3\n\b\r\x1b[1m12/313\x1b[0m \x1b[32m━━\x1b[0m 4s 14ms/step - loss: 0.5\n"
    ).encode(),
}


def lists(world: World, draw: Draw) -> None:
    """Slurm's lists of nodes, numbers and jobs, and its forms of time."""
    from hpcrun.errors import HpcrunError
    from hpcrun.slurm import hostlist, parse

    model = draw.rng.choice(
        ["n[1-3],m7", "n[001-003,7]x,m", "0-3,7", "123_[4,6-9%2]", "123_4", "0-8:4", "2-12:30:00"]
    )
    text = mutations.words(draw, model)
    draw.note(f"{text[:3000]!r}")
    for function in (hostlist.expand, parse.parse_duration, parse.parse_time):
        with contextlib.suppress(HpcrunError):
            function(text)
    with contextlib.suppress(HpcrunError):
        found = hostlist.expand_job_id(text)
        if any(not re.fullmatch(r"\d+(_\d+)?", one, re.ASCII) for one in found):
            raise Finding("what is no job id was read as one", repr(found[:5]))
    for strides in (False, True):
        with contextlib.suppress(ValueError, HpcrunError):
            hostlist.parse_ranges(text, strides=strides)


def slurm_output(world: World, draw: Draw) -> None:
    """Answers of squeue and sacct that no Slurm gave."""
    from hpcrun.slurm import queue

    name = draw.rng.choice(["squeue", "sacct"])
    data = mutations.blob(draw, world.slurm[name].encode()) if draw.rng.random() < 0.3 else None
    text = (
        mutations.words(draw, world.slurm[name]) if data is None else data.decode(errors="replace")
    )
    draw.note(f"{name}: {text[:3000]!r}")
    if draw.rng.random() < 0.7:
        (queue.parse_squeue if name == "squeue" else queue.parse_sacct)(text)
        return
    world.answers[name] = text
    try:
        argv = draw.rng.choice(
            [
                ("status", "half", B, "--json"),
                ("status", "half", B),
                ("list",),
                ("why", "half"),
                ("cancel", "half", "--dry-run"),
                ("requeue", "half", "--dry-run"),
            ]
        )
        draw.note(f"hpcrun {' '.join(argv)}")
        answer = world.call(*argv, root=world.root("half"))
        if argv[0] in ("status", "list") and B not in answer.out:
            raise Finding("Slurm's answer cost a row", answer.err[-300:])
    finally:
        world.answers[name] = world.slurm[name]


def slurm_cache(world: World, draw: Draw) -> None:
    """The file of Slurm's last answers, which lies in a user's home."""
    from hpcrun.observe.status.slurm_cache import default_path

    os.environ["XDG_CACHE_HOME"] = str(world.directory / "cache")
    try:
        path = default_path()
        path.parent.mkdir(parents=True, exist_ok=True)
        model = {
            "asked": 1795413500.0, "took": 0.1, "no_accounting": 0.0, "patience": 3.0,
            "about": ["1_0", "1_3", "4"],
            "jobs": {
                "1_3": [1795413500.0, ["RUNNING", False, False, "", "n[1-2]", None, None, None]],
                "4": [1795413590.0, ["RUNNING", False, False, "", "n[1-2]", None, None, None]],
            },
        }  # fmt: skip
        data = mutations.document(draw, json.dumps(model).encode())
        draw.note(repr(data[:3000]))
        path.write_bytes(data)
        answer = world.call("status", "half", B, root=world.root("half"))
        if B not in answer.out:
            raise Finding("the cache cost a row", answer.err[-300:])
    finally:
        shutil.rmtree(world.directory / "cache")
        os.environ["XDG_CACHE_HOME"] = "/dev/null/none"


def greetings(world: World, draw: Draw) -> None:
    """First lines to a supervisor's port, by who does not know its secret."""
    from hpcrun.run.protocol.job_secret import JobSecret
    from hpcrun.run.protocol.switchboard import Switchboard

    secret, other = JobSecret("11" * 32), JobSecret("22" * 32)
    number = "ab" * 16
    model = f"hpcrun-agent n1 {number} {other.digest('hpcrun-agent', 'n1', number)}\n"
    lines = [mutations.blob(draw, model.encode()) for _ in range(draw.rng.choice([1, 1, 3]))]
    draw.note(repr(lines)[:3000])
    board = Switchboard("127.0.0.1", secret, ["n1", "n2"])
    try:
        host, _, port = board.address.rpartition(":")
        peers = [socket.create_connection((host, int(port))) for _ in lines]
        for peer, line in zip(peers, lines, strict=True):
            peer.sendall(line)
        said = [message for _ in range(4) for message in board.poll(0.001)]
        for peer in peers:
            peer.close()
        said += [message for _ in range(4) for message in board.poll(0.001)]
        if said or board.channels:
            raise Finding("a stranger was taken for an agent", repr(said)[:200])
    finally:
        board.close()


def messages(world: World, draw: Draw) -> None:
    """Messages of an agent that knows the secret and is broken, and lines that nobody signed."""
    from hpcrun.run.protocol import messages as checks
    from hpcrun.run.protocol.channel import Channel, _mac

    rng = draw.rng
    text = mutations.document(draw, json.dumps(rng.choice(_MESSAGES)).encode())
    draw.note(repr(text[:3000]))
    near, far = socket.socketpair()
    channel = Channel(near, b"supervisor", b"agent")
    try:
        signed = _mac(b"agent", 0, text) if rng.random() < 0.9 else b"0" * 32
        far.settimeout(5)
        # What does not fit into the socket at once is for a test of slow peers.
        far.sendall((signed + b" " + text + b"\n")[:60_000])
        found = channel.receive(timeout=0)
        if found and signed == b"0" * 32:
            raise Finding("a line that nobody signed was taken", repr(found)[:200])
        ranks = range(4, 8)
        for message in found:
            for check in (
                *(checks.progress, checks.log_sizes, checks.stacks, checks.gone),
                lambda said, _: checks.signal_name(said),
                lambda said, _: checks.extensions(said),
                lambda said, _: checks.link_trouble(said),
                lambda said, _: checks.ready(said, "n1", "0123456789ab", 2, first=True),
            ):
                with contextlib.suppress(checks.BadMessage):
                    check(message, ranks)
    finally:
        channel.close()
        far.close()


_SCRATCH = "/tmp/hpcrun-0123456789ab/attempt-2"
_MESSAGES: tuple[dict[str, Any], ...] = (
    {
        "type": "ready",
        "port": 10_000,
        "node": {
            **{"name": "n1", "code": f"{_SCRATCH}/code", "scratch": _SCRATCH, "interface": "ib0"},
            **{"address": "10.9.0.1", "hca": "=mlx5_0:1,mlx5_1", "extensions": None},
        },
    },
    {
        "type": "progress",
        "logs": {"7": 100},
        "fabric": "ib0 has no carrier",
        "ranks": {
            "5": {
                **{"pid": 7, "step": 3, "phase": 1, "moves": 2, "looks": 5, "state": "S"},
                **{"processor": 12, "waits": 1},
            }
        },
    },
    {"type": "stacks", "ranks": {"4": "Thread"}},
    {"type": "gone", "gone": [4, 7]},
    {"type": "signal", "signal": "SIGUSR2"},
    {"type": "prepared", "extensions": "0123456789abcdef0123"},
)


def spec(world: World, draw: Draw) -> None:
    """A spec, alone or with a base, broken as text."""
    name = draw.rng.choice([*["after.yaml"] * 4, "long.yaml", "half.yaml"])
    text = (world.specs / name).read_text()
    if draw.rng.random() < 0.5:
        text += f"config: {{x: 1, y: [1, {{a: b}}]}}\n{draw.rng.choice(_SWEEPS)}"
    _compile(world, draw, world.specs / "fuzzed.yaml", mutations.yaml_text(draw, text))


_SWEEPS = (
    "sweep: {grid: {config.x: [1, 2, 3]}, exclude: [{config.x: 2}]}\n",
    "sweep: {zip: {config.x: [1, 2], resources.nodes: [1, 2]}, repeat: {config.seed: [0, 1]}}\n",
    "sweep: {random: {samples: 3, seed: 1, config.x: {loguniform: [1.0e-4, 1.0e-2]}}}\n",
    "sweep:\n  points:\n  - {config.x: 1}\n  - {config.x: 2}\n  max_parallel: 2\n",
    "extendable: [config.x]\n",
    "depends_on: [after.yaml]\n",
    "environment: {variables: {A: '${config.x}', B: '${hpcrun:run}'}, setup: ['module load x']}\n",
    "checkpoint: {every: 10, initialize_from: 'study/0@4'}\n",
    "notify: {mail: a@b.c, command: [true]}\nrecovery: {budgets: {hang: 1}}\n",
)


def base(world: World, draw: Draw) -> None:
    """A spec that another one extends."""
    path = world.specs / "base.yaml"
    data = mutations.yaml_text(draw, path.read_text())
    before = path.read_bytes()
    try:
        path.write_bytes(data)
        draw.note(repr(data[:3000]))
        world.call("plan", "study-wide.yaml", root=world.root("study"))
    finally:
        path.write_bytes(before)


def spec_values(world: World, draw: Draw) -> None:
    """A spec with values of other types, keys that are missing, and keys that are too many."""
    import yaml

    name = draw.rng.choice(["after.yaml", "half.yaml", "base.yaml", "long.yaml"])
    value = yaml.safe_load((world.specs / name).read_text())
    value.setdefault("name", "fuzzed")
    data = mutations.dump(draw.mutate(value, mutations.JSON_WAYS), ensure_ascii=False)
    _compile(world, draw, world.specs / "fuzzed.yaml", data)


def _compile(world: World, draw: Draw, path: Path, data: bytes, spec: str = "") -> None:
    draw.note(f"{path.name}: {data[:3000]!r}")
    path.write_bytes(data)
    try:
        argv = draw.rng.choice([("plan",), ("plan", "--json"), ("submit", "--dry-run")])
        answer = world.call(*argv, spec or path.name, root=world.root("study"))
        if "--json" in argv and answer.code == 0:
            world.json_of(answer)
    finally:
        path.unlink()


def profile(world: World, draw: Draw) -> None:
    """A cluster profile beside a spec."""
    source = world.specs / "configs" / "clusters" / "bed.yaml"
    path = source.with_name("fuzzed.yaml")
    (world.specs / "profiled.yaml").write_text(
        (world.specs / "long.yaml").read_text().replace("cluster: local", "cluster: fuzzed")
    )
    _compile(world, draw, path, mutations.yaml_text(draw, source.read_text()), "profiled.yaml")


def deepspeed(world: World, draw: Draw) -> None:
    """A DeepSpeed JSON that a spec names."""
    source = world.directory / "golden" / "ds_zero2.json"
    (world.specs / "deepspeed.yaml").write_text(
        "name: ds\ncluster: local\nentry: train.py:train\ndeepspeed_config: fuzzed.json\n"
    )
    data = mutations.document(draw, source.read_bytes())
    _compile(world, draw, world.specs / "fuzzed.json", data, "deepspeed.yaml")


TARGETS: dict[str, tuple[int, Target]] = {
    **{kind: (share, _broken_file(kind)) for kind, (_, _, share, _) in FILES.items()},
    "names": (4, names),
    **{kind: (3, _broken_text(kind)) for kind in ("where", "filter", "ranks")},
    "overrides": (1, _broken_text("overrides")),
    "lists": (6, lists),
    "program output": (4, program_output),
    "slurm output": (4, slurm_output),
    "slurm cache": (1, slurm_cache),
    "greetings": (2, greetings),
    "messages": (4, messages),
    "spec": (5, spec),
    "spec values": (4, spec_values),
    "base spec": (1, base),
    "profile": (2, profile),
    "deepspeed": (3, deepspeed),
}


def choose(rng: Any, only: Sequence[str] = ()) -> str:
    """Draw a target by its share."""
    found = [name for name in TARGETS if not only or name in only]
    return str(rng.choices(found, [TARGETS[name][0] for name in found])[0])

"""What others have written never acts on a terminal, whichever command shows it.

The attacker writes into every place that commands read: specs, plans, ledgers, journals, metrics,
names of nodes and of files, Slurm's answers. Each holds escape sequences, C1 controls, reversed
text, carriage returns, a byte that is no UTF-8, and a line that would pass for hpcrun's own.
"""

from __future__ import annotations

import io
import json
import math
import os
import re
import subprocess
import sys
import tarfile
import threading
import time
import tty
import unicodedata
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import hpcrun as hpcrun_package
from hpcrun.compile.target.sbatch_script import directive
from hpcrun.errors import UsageError
from hpcrun.observe.status.status_table import Screen
from hpcrun.run.protocol import output
from hpcrun.state import files, plan_file
from hpcrun.state.layout import experiment
from tests.support.command import hpcrun
from tests.support.experiment import Experiment, path_with, slurm_shim
from tests.support.needs_tool import needs_tool

ACTS = "\x1b]0;title\x07\x1b[2J\x9b31m\x90q\x9c\x7f\u202etxt\u2066\ufeff\u2028\x1b[8m"
POISON = f"{ACTS}\udcff\rover\r\nFORGED by\nFORGED line"
# What a file's name can be, and what no line of a log or of Slurm's answers can be: two lines.
ONE_LINE = f"{ACTS}\rover"

# Where poison would only make a record unreadable, and so stay unseen.
KEPT = {"event", "kind", "executor", "outcome", "mode", "directory", "archive", "name", "job_id"}

COMMANDS = """
list
list --json
status fine
status
status -v study evil
status --json
status --cost study
status --cost --json study
status --where lr=x study
logs study
logs study evil
logs --json study
logs --stream all study
logs --stream all --json study
logs --timestamps --attempt all study/1
logs --no-fold --attempt all study/1
logs --node POISON study
logs --grep (POISON study
results study
results --json study
results --format csv study
results --format latex study
results --sort POISON study
results --filter POISON<3 study
results --group-by note study
why study
why study/0
why study/1
why --json study
show study
show study/1
show study/1 --json
show study/1 --config
show study/1 --config --json
show study/1 --script
show study/1 --deepspeed
show study/1 --code
show study/1 --path
diff study/0 study/1
diff study/0 evil/0 --code
diff study/0 evil/0 --code --json
export study --logs -o out/study.tar.gz
export study --logs --dry-run -o out/none.tar.gz
export study -o out/POISON
report study -o -
report study -o out/study.html
cancel --dry-run study
cancel study
requeue --dry-run study
requeue study
clean --dry-run --logs study
clean study
plan spec.yaml
plan --json spec.yaml
plan broken.yaml
plan POISON.yaml
plan spec.yaml config.POISON=1
submit --dry-run spec.yaml cluster=local
drill --dry-run spec.yaml
run broken.yaml
status hostil
status POISON
status --root POISON
status --POISON
POISON
completion bash
"""

# Types each command in one process, as a start of Python costs more than most of them.
DRIVER = """
import json, os, sys
from hpcrun.cli.main import main
for argv in json.loads(sys.argv[1]):
    sys.argv[1:] = argv
    try:
        main(argv)
    except SystemExit:
        pass
    for stream in sys.stdout, sys.stderr:
        stream.flush()
    os.write(1, b"\\0")
    os.write(2, b"\\0")
"""


BIDI = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}


class Said(NamedTuple):
    """What a command printed; on a terminal all of it is ``out``."""

    argv: list[str]
    out: str
    err: str


def poisoned(value: Any, key: str = "") -> Any:
    """The same record, with poison at the end of all its text but what makes it readable."""
    if isinstance(value, dict):
        return {name: poisoned(each, name) for name, each in value.items()}
    if isinstance(value, list):
        return [poisoned(each, key) for each in value]
    return value + POISON if isinstance(value, str) and key not in KEPT else value


def poison_files(study: Experiment) -> None:
    """Rewrite all records of an experiment."""
    for path in study.paths.directory.rglob("*.json"):
        if path.name != "plan.json":
            path.write_text(json.dumps(poisoned(json.loads(path.read_text()))))
    for path in study.paths.directory.rglob("*.jsonl"):
        records = [poisoned(json.loads(line)) for line in path.read_text().splitlines()]
        path.write_text("".join(json.dumps(record) + "\n" for record in records))


def write_study(root: Path, name: str = "study") -> None:
    study = Experiment(root, name)
    note = {"config.lr": "x" + POISON, f"config.note{ONE_LINE}": POISON, "config.inf": math.inf}
    spec = {
        "config": {"inf": math.nan, f"key{POISON}": POISON, "list": [POISON]},
        "deepspeed": {"train_batch_size": 8, "note": POISON, "nan": math.nan},
        "objective": {"metric": f"loss{ONE_LINE}", "mode": "min"},
    }
    paths = study.submit((0, 1), swept={0: note, 1: {**note, "config.lr": POISON}}, spec=spec)
    data = json.loads(paths.plan.read_text())
    for each in ("spec_file", "code_root"):
        data[each] += POISON
    data["cluster"]["name"] += POISON
    data["arrays"][0]["script"] += f"# {ONE_LINE}\n"
    paths.plan.write_text(json.dumps(data))
    plan_file.read(paths.plan)
    archive = f"{name}.tar.gz"
    (study.paths.code).mkdir()
    with tarfile.open(study.paths.code / archive, "w:gz") as tar:
        for member, text in ((f"code{ONE_LINE}.py", f"{name}{ONE_LINE}\n"), ("more.py", "\n")):
            one = tarfile.TarInfo(member)
            one.size = len(text.encode())
            tar.addfile(one, io.BytesIO(text.encode()))
    git = {"commit": "abc", "branch": f"main{POISON}", "dirty": True}
    code = {"archive": archive, "digest": name, "git": git, "files": 1}
    facts = json.loads(paths.submission.read_text())
    paths.submission.write_text(json.dumps({**facts, "code": code}))
    for run, outcome in ((0, "completed"), (1, "failed")):
        at = study.start(run, job_id=f"100_{run}", nodes=(f"n1{ONE_LINE}", "n2"))
        values = {f"loss{ONE_LINE}": math.nan, "loss": 0.5, "up": math.inf}
        study.metrics(run, 1, [1, 2], **values)
        for rank in (0, 1):
            study.log(run, 1, rank, f"a line\n{ACTS.replace(chr(27) + '[8m', '')}\nrank {rank}\n")
        for stream in ("agent", "tracker"):
            name_ = os.fsencode(f"{stream}-n1{POISON}.log")
            Path(os.fsdecode(os.fsencode(at.directory) + b"/" + name_)).write_text("it speaks\n")
        (at.directory / f"telemetry-n1{ONE_LINE}.jsonl").write_text('{"time": 1, "cpu": NaN}\n')
        cause = {
            **{"kind": "rank_crash", "message": f"it failed{POISON}", "rank": 0},
            **{"node": f"n1{ONE_LINE}", "log_tail": ["a tail", POISON]},
        }
        event = {"event": "save_failed", "time": 1.0, "step": 1, "message": POISON}
        files.append(at.session, event, {**event, "event": "quarantined", "checkpoint": POISON})
        study.end(run, outcome=outcome, **(cause if outcome == "failed" else {}))
    study.start(1, 2, job_id="100_1", nodes=(f"n3{ONE_LINE}",))
    study.log(1, 2, 0, "once more\n")
    poison_files(study)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The attacker's work: a root of experiments, specs, and Slurm's answers."""
    place = tmp_path_factory.mktemp("place")
    (place / "out").mkdir()
    fine = Experiment(place / "root", "fine")
    fine.submit((0,))
    fine.start(0)
    fine.end(0)
    write_study(place / "root")
    write_study(place / "root", "evil")
    hostile = Experiment(place / "root", os.fsdecode(os.fsencode(f"hostile{POISON}$(id)")))
    hostile.submit((0,))
    row = f"100_1|RUNNING|{ONE_LINE}|n{ONE_LINE}|N/A\n"
    past = f"100_1|FAILED{ONE_LINE}|1:0|{ONE_LINE}|N/A|1:0|{ONE_LINE}\n"
    slurm_shim(place / "shim", squeue=row.replace("\r", ""), sacct=past.replace("\r", ""))
    spec: dict[str, Any] = {
        "name": "spec",
        "cluster": "local",
        "entry": ["echo", f"hello{POISON}"],
        "resources": {"nodes": 1, "time": "00:10:00"},
        "config": {"note": POISON, "nan": math.nan},
        "sweep": {"grid": {"config.note": [POISON, f"other{POISON}"]}},
    }
    text = json.dumps(spec).replace("\\udcff", "")
    (place / "spec.yaml").write_text(text)
    broken = {**spec, f"key{ONE_LINE}": 1, "resources": {f"nods{POISON}": 1, "time": POISON}}
    (place / "broken.yaml").write_text(json.dumps(broken).replace("\\udcff", ""))
    return place


def environment(place: Path) -> dict[str, str]:
    """What the person who is attacked has around the commands."""
    return {
        **os.environ,
        **{"HPCRUN_ROOT": str(place / "root"), "PATH": path_with(place / "shim")},
        **{"HOME": str(place / "out"), "HPCRUN_STORAGE": "local"},
        **{"TERM": "xterm-256color", "COLUMNS": "400", "PYTHONPATH": str(Path.cwd())},
    }


def typed() -> list[list[str]]:
    lines = COMMANDS.strip().splitlines()
    return [[word.replace("POISON", POISON) for word in line.split()] for line in lines]


def driver(place: Path) -> dict[str, Any]:
    argv = [sys.executable, "-c", DRIVER, json.dumps(typed())]
    return {"args": argv, "cwd": place, "env": environment(place), "stdin": subprocess.DEVNULL}


@pytest.fixture(scope="module")
def piped(place: Path) -> list[Said]:
    """What all commands print into pipes."""
    done = subprocess.run(**driver(place), capture_output=True, timeout=120, check=True)
    out, err = (text.decode(errors="strict").split("\0") for text in (done.stdout, done.stderr))
    assert len(out) == len(err) == len(typed()) + 1
    return [Said(*one) for one in zip(typed(), out, err, strict=False)]


@pytest.fixture(scope="module")
def on_terminal(place: Path) -> list[Said]:
    """What all commands send to a terminal."""
    ours, theirs = os.openpty()
    tty.setraw(theirs)
    taken = bytearray()

    def take() -> None:
        while True:
            try:
                block = os.read(ours, 1 << 16)
            except OSError:
                return
            taken.extend(block)

    reader = threading.Thread(target=take)
    reader.start()
    process = subprocess.Popen(**driver(place), stdout=theirs, stderr=theirs)
    os.close(theirs)
    assert process.wait(timeout=120) == 0
    reader.join(timeout=10)
    os.close(ours)
    # Both streams end each command.
    parts = bytes(taken).decode(errors="strict").split("\0")[: 2 * len(typed())]
    return [
        Said(argv, out + more, "")
        for argv, out, more in zip(typed(), parts[::2], parts[1::2], strict=True)
    ]


def acting(text: str) -> set[str]:
    """What a terminal would not show but do; line ends and tabs may be."""
    return {
        f"U+{ord(each):04X}"
        for each in text.replace("\r\n", "\n")
        if (unicodedata.category(each) in ("Cc", "Cs", "Zl", "Zp") and each not in "\n\t")
        or unicodedata.bidirectional(each) in BIDI
        or each == "\ufeff"
    }  # fmt: skip


def test_no_command_sends_control_characters_into_a_pipe(piped: list[Said]) -> None:
    wrong = {" ".join(one.argv): acting(one.out + one.err) for one in piped}
    assert {command: found for command, found in wrong.items() if found} == {}
    shown = [" ".join(one.argv) for one in piped if r"\x1b" in one.out + one.err]
    assert len(shown) > 30, "the poison is nowhere to be seen, so nothing was tested"


def test_no_command_sends_a_terminal_more_than_its_own_colours(on_terminal: list[Said]) -> None:
    # Bold and colours, and of the bar of `export` the cursor and the start of its line.
    own = re.compile(
        r"\x1b\[(?:[012]|[39][0-7]|[;01])*m|\r(?=study\.tar\.gz  \[)|\x1b\[(?:\?25[lh]|K)"
    )
    wrong = {" ".join(one.argv): acting(own.sub("", one.out)) for one in on_terminal}
    assert {command: found for command, found in wrong.items() if found} == {}
    fine = next(one.out for one in on_terminal if one.argv == ["status", "fine"])
    assert "\x1b[94mcompleted" in fine, "colours of our own are gone"
    assert not any("\x1b[8m" in one.out for one in on_terminal)


def test_no_value_begins_a_line_of_its_own(piped: list[Said], on_terminal: list[Said]) -> None:
    # Data for programs, in which a value may have lines: CSV quotes it, a page ignores them.
    data = ("csv", "report")
    forged = [
        (one.argv, line)
        for one in [*piped, *on_terminal]
        for line in (one.out + one.err).splitlines()
        if line.startswith("FORGED")
        and not {*data} & {*one.argv}
        and POISON not in " ".join(one.argv)
    ]
    assert forged == []


def test_every_json_is_strict(piped: list[Said]) -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    seen = 0
    for one in piped:
        if "--json" in one.argv and one.out:
            documents = one.out.splitlines() if one.argv[0] == "logs" else [one.out]
            for document in documents:
                json.loads(document, parse_constant=refuse)
                seen += 1
    assert seen > 10


def test_what_goes_around_the_guard_is_known() -> None:
    """Whoever writes bytes or colours makes visible what it writes, and is attacked here."""
    around = re.compile(
        r"std(?:out|err)\.buffer|styled\(|Console\(|__std(?:out|err)__|os\.write\([12],"
    )
    package = Path(hpcrun_package.__file__).parent
    rooms = ("cli", "control", "observe", "submit", "compile", "state", "slurm", "policy")
    found = {
        str(path.relative_to(package))
        for room in rooms
        for path in (package / room).rglob("*.py")
        if around.search(re.sub(r'"""(?s:.*?)"""', "", path.read_text()))
    }
    assert found == {
        *("cli/logs.py", "cli/run.py", "cli/status.py", "observe/tables.py"),
        "cli/help.py",  # what it draws is our own documentation
    }


def test_the_live_screen_draws_no_control_characters(place: Path) -> None:
    from rich.console import Console

    from hpcrun.observe.read.selection import Finder
    from hpcrun.observe.status.status import statuses

    selected = Finder(place / "root").resolve(["study"])
    found = statuses(selected)
    taken = io.StringIO()
    console = Console(file=taken, force_terminal=True, no_color=True, width=300, height=40)
    console.print(Screen(console).render(selected, found, POISON))
    text = re.sub(r"\x1b\[[0-9;]*m", "", taken.getvalue())
    assert "study/1" in text
    assert r"\x1b" in text
    assert acting(text) == set()
    assert "\x1b[8m" not in taken.getvalue()


@needs_tool("report")
def test_the_report_holds_no_control_characters(place: Path, piped: list[Said]) -> None:
    page = (place / "out/study.html").read_bytes().decode(errors="strict")
    assert "it failed" in page
    assert acting(page) == set()


@needs_tool("export")
def test_what_an_archive_tells_holds_no_control_characters(place: Path, piped: list[Said]) -> None:
    with tarfile.open(place / "out/study.tar.gz") as tar:
        for name in ("study/README.txt", "study/results.csv"):
            member = tar.extractfile(name)
            assert member is not None
            text = member.read().decode(errors="strict")
            assert r"\x1b" in text
            assert acting(text) == set()


def test_a_name_forges_no_line_of_a_batch_log(capfd: pytest.CaptureFixture[str]) -> None:
    output.say(f"run of {POISON}")
    output.tell(f"checkpoint {POISON}")
    out = capfd.readouterr().out
    assert acting(out) == set()
    assert [line for line in out.splitlines() if not line.startswith("    ")] == [
        line for line in out.splitlines() if "hpcrun: " in line
    ]


@pytest.mark.parametrize("option", ["comment", "job-name", "mail-user"])
@pytest.mark.parametrize("text", ["a\x9b2J", "a\u202eb", "a\udcff"])
def test_slurm_is_given_no_control_characters(option: str, text: str) -> None:
    with pytest.raises(UsageError, match="control character"):
        directive(option, text)


def test_no_cell_is_a_formula_for_a_spreadsheet(tmp_path: Path) -> None:
    study = Experiment(tmp_path)
    link = '=HYPERLINK("http://evil","open")'
    study.submit((0,), swept={0: {"config.note": link, "config.more": "@SUM(1)", "config.n": -1.5}})
    wide = {"config.a": "\uff1d1+1", "config.b": "x;=1+1", "config.c": "1; -1", "config.d": "a;b"}
    study.submit((1,), swept={1: wide})
    text = hpcrun("results", "study", "--format", "csv", root=tmp_path).stdout
    assert "\"'=HYPERLINK(" in text
    assert "'@SUM(1),-1.5," in text
    assert "'\uff1d1+1,x;'=1+1,1;' -1,a;b" in text


HOSTILE_NAMES = (
    "$(touch pwned)",
    "`touch pwned`",
    "a;touch pwned",
    "-rf",
    "a b",
    "a*",
    "~x",
    "a\nb",
    "a\x1b[2J",
    "a\u202eb",
    "é",
    os.fsdecode(b"a\xff"),
)


@pytest.fixture
def names(tmp_path: Path) -> Path:
    for name in ("study-1.b_c", *HOSTILE_NAMES):
        Experiment(tmp_path, name).submit((0, 1))
    return tmp_path


def complete(root: Path, shell: str, words: str) -> subprocess.CompletedProcess[str]:
    *_, last = words.split(" ")
    index = last if shell == "fish" else str(len(words.split(" ")) - 1)
    asked = {"COMP_WORDS": words, "COMP_CWORD": index, "_HPCRUN_COMPLETE": f"{shell}_complete"}
    return hpcrun(root=root, cwd=root, env=asked, timeout=20)


@needs_tool("completion")
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_offers_only_names(names: Path, shell: str) -> None:
    done = complete(names, shell, "hpcrun status ")
    assert [line.split("\t") for line in done.stdout.splitlines()] == [["plain", "study-1.b_c", ""]]
    for hostile in ("$(touch", "../"):
        done = complete(names, shell, f"hpcrun cancel {hostile}/")
        assert "pwned" not in done.stdout
        assert done.stderr == ""


@needs_tool("completion")
def test_a_shell_that_completes_executes_nothing(names: Path, tmp_path: Path) -> None:
    script = hpcrun("completion", "bash", root=names).stdout
    program = names / "hpcrun"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m hpcrun "$@"\n')
    program.chmod(0o755)
    tried = (
        f"{script}\nCOMP_LINE='hpcrun status '; COMP_POINT=14; _hpcrun_completion ./hpcrun ''\n"
        'eval "echo ${COMPREPLY[*]}"\n'
    )
    variables = {**os.environ, "HPCRUN_ROOT": str(names), "PYTHONPATH": str(Path.cwd())}
    done = subprocess.run(
        ["bash", "--norc", "-c", tried],
        **{"capture_output": True, "text": True, "timeout": 30, "check": False},
        **{"cwd": names, "env": variables},
    )
    assert done.stdout.split() == ["study-1.b_c"]
    assert not (names / "pwned").exists()


def test_completion_waits_for_nothing_and_prints_no_error(tmp_path: Path) -> None:
    Experiment(tmp_path).submit((0,))
    # As slow as storage that hangs, whatever reads it.
    slow = tmp_path / "slow"
    slow.mkdir()
    (slow / "sitecustomize.py").write_text(
        "import os, time\n"
        "def hanging(call):\n"
        "    def listed(path='.'):\n"
        "        if str(path) == os.environ['HPCRUN_ROOT']:\n"
        "            time.sleep(60)\n"
        "        return call(path)\n"
        "    return listed\n"
        "os.listdir, os.scandir = hanging(os.listdir), hanging(os.scandir)\n"
    )
    asked = {"COMP_WORDS": "hpcrun status ", "COMP_CWORD": "2"}
    asked |= {"_HPCRUN_COMPLETE": "bash_complete", "PYTHONPATH": f"{slow}:{Path.cwd()}"}
    began = time.monotonic()
    done = hpcrun(root=tmp_path, env=asked, timeout=30)
    assert time.monotonic() - began < 5
    assert done.stdout == done.stderr == ""
    broken = experiment(tmp_path, "study").submission(1).plan
    broken.write_text("[" * 100_000)
    for words in ("hpcrun status study/", "hpcrun nonsense ", "hpcrun status --root"):
        done = complete(tmp_path, "bash", words)
        assert done.stderr == ""

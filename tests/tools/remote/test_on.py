"""``hpcrun --on HOST`` as it is typed, with a stand-in for ssh; the real one: test_laptop."""

from __future__ import annotations

import json
import os
import pty
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hpcrun.tools.remote import own_copy
from tests.support import command
from tests.support.ssh_stand_in import HOST, FarHost
from tests.support.waiting import until

SPEC = "entry: train.py\nconfig: {lr: 0.1}\ncluster: local\n"


@pytest.fixture
def far(tmp_path: Path) -> FarHost:
    return FarHost(tmp_path)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A checkout with a spec in a directory of its own, and what git ignores."""
    top = tmp_path / "project"
    (top / "experiments").mkdir(parents=True)
    (top / "train.py").write_text("import sys\nprint('trained', sys.argv[1:])\n")
    (top / "experiments" / "e.yaml").write_text(SPEC.replace("train.py", "../train.py"))
    (top / ".gitignore").write_text("data/\n")
    (top / "data").mkdir()
    (top / "data" / "big").write_text("big")
    _git(top, "init", "-q", "-b", "main")
    _git(top, "add", ".")
    _git(top, "commit", "-qm", "first")
    return top


def _git(top: Path, *words: str) -> str:
    names = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    done = subprocess.run(
        ["git", "-C", str(top), *names, *words], check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def _on(far: FarHost, *words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return command.hpcrun("--on", HOST, *words, cwd=cwd, env=far.environment)


def test_a_command_runs_there_with_its_output_its_exit_code_and_its_own_hpcrun(
    far: FarHost, tmp_path: Path
) -> None:
    first = _on(far, "status", cwd=tmp_path)
    assert first.returncode == 2
    assert first.stdout == ""
    assert "bringing hpcrun" in first.stderr
    assert f"no experiment under {far.home}" in first.stderr
    again = _on(far, "status", "--json", cwd=tmp_path)
    assert "bringing" not in again.stderr
    assert "ForwardAgent=no" in far.log.read_text()
    assert not [one for one in far.home.rglob("*") if stat.S_IMODE(one.stat().st_mode) & 0o002]


def test_tab_is_answered_there(far: FarHost, tmp_path: Path) -> None:
    typed = {"_HPCRUN_COMPLETE": "1", "COMP_WORDS": f"hpcrun --on {HOST} stat"}

    def rows() -> str:
        answer = subprocess.run(
            [sys.executable, "-m", "hpcrun"],
            env={**os.environ, **far.environment, **typed},
            cwd=tmp_path,
            check=True,
            capture_output=True,
            text=True,
        )
        return answer.stdout.strip()

    assert rows() == "", "nothing is brought for it"
    _on(far, "status", cwd=tmp_path)
    assert rows().startswith("plain\tstatus\t")


def test_the_code_goes_along_as_it_is_here(far: FarHost, project: Path) -> None:
    spec = project / "experiments"
    (project / "train.py").write_text("print('changed')\n")
    (spec / "new.py").write_text("")
    done = _on(far, "submit", "e.yaml", "--wait", cwd=spec)
    assert done.returncode == 0, done.stderr
    assert "bringing" in done.stderr
    shown = json.loads(_on(far, "show", "e/0", "--code", "--json", cwd=spec).stdout)
    state = {"commit": _git(project, "rev-parse", "HEAD"), "branch": "main", "dirty": True}
    assert shown["git"] == state
    assert _on(far, "logs", "e", cwd=spec).stdout == "changed\n"
    checkout = next(far.home.rglob("new.py")).parent.parent
    assert (checkout / "experiments" / "new.py").is_file()
    assert not (checkout / "data").exists()


def test_what_is_the_same_is_not_brought_again_and_what_is_gone_goes(
    far: FarHost, project: Path
) -> None:
    (project / "old.py").write_text("")
    first = _on(far, "plan", "experiments/e.yaml", cwd=project)
    checkout = next(far.home.rglob("old.py")).parent
    (project / "old.py").unlink()
    changed = _on(far, "plan", "experiments/e.yaml", cwd=project)
    same = _on(far, "plan", "experiments/e.yaml", cwd=project)
    assert first.returncode == changed.returncode == same.returncode == 0
    assert ["bringing" in one.stderr for one in (first, changed, same)] == [True, True, False]
    assert not (checkout / "old.py").exists()
    assert _git(checkout, "status", "--porcelain") == ""


def test_a_commit_without_a_change_is_clean_there_too(far: FarHost, project: Path) -> None:
    _on(far, "plan", "experiments/e.yaml", cwd=project)
    (project / "train.py").write_text("print('second')\n")
    _git(project, "commit", "-qam", "second")
    done = _on(far, "submit", "experiments/e.yaml", "--wait", cwd=project)
    assert done.returncode == 0, done.stderr
    shown = json.loads(_on(far, "show", "e/0", "--code", "--json", cwd=project).stdout)
    state = {"commit": _git(project, "rev-parse", "HEAD"), "branch": "main", "dirty": False}
    assert shown["git"] == state


def test_a_directory_without_git(far: FarHost, tmp_path: Path) -> None:
    place = tmp_path / "plain"
    place.mkdir()
    (place / "train.py").write_text("print('plain')\n")
    (place / "e.yaml").write_text(SPEC)
    done = _on(far, "submit", "e.yaml", "--wait", cwd=place)
    assert done.returncode == 0, done.stderr
    assert _on(far, "logs", "e", cwd=place).stdout == "plain\n"


def test_a_program_in_place_of_a_spec(far: FarHost, project: Path) -> None:
    words = ("submit", "--wait", "--save", "made.yaml", "cluster=local", "train.py", "--lr", "0.5")
    done = _on(far, *words, cwd=project)
    assert done.returncode == 0, done.stderr
    assert _on(far, "logs", "train", cwd=project).stdout == "trained ['--lr', '0.5']\n"
    assert "entry: train.py" in (project / "made.yaml").read_text()
    (project / "made.yaml").unlink()
    _on(far, "plan", "experiments/e.yaml", cwd=project)
    assert not (project / "made.yaml").exists()


def test_mistakes_are_told_by_the_other_end(far: FarHost, project: Path) -> None:
    spec = project / "experiments" / "e.yaml"
    spec.write_text(spec.read_text() + "resorces: {nodes: 2}\n")
    wrong = _on(far, "plan", "experiments/e.yaml", cwd=project)
    assert wrong.returncode == 2
    assert "resorces: unknown key" in wrong.stderr
    missing = _on(far, "plan", "nowhere.yaml", cwd=project)
    assert missing.returncode == 2
    assert "nowhere.yaml" in missing.stderr
    none = _on(far, "statsu", cwd=project)
    assert none.returncode == 2
    assert "Did you mean 'status'" in none.stderr


def test_files_that_a_command_writes_come_here(far: FarHost, project: Path) -> None:
    assert _on(far, "submit", "experiments/e.yaml", "--wait", cwd=project).returncode == 0
    done = _on(far, "report", "e", cwd=project)
    assert done.returncode == 0, done.stderr
    assert (project / "e.html").read_text().startswith("<!DOCTYPE html>")
    (project / "mine.html").write_text("mine")
    kept = _on(far, "report", "e", "-o", "mine.html", cwd=project)
    assert kept.returncode == 2
    assert "stays as it is" in kept.stderr
    assert (project / "mine.html").read_text() == "mine"
    assert not list((far.home / ".local/share/hpcrun/on").glob("scratch-*"))


def test_a_profile_names_the_host_and_goes_along(
    far: FarHost, project: Path, tmp_path: Path
) -> None:
    own = tmp_path / "profiles"
    own.mkdir()
    (own / "big.yaml").write_text(f"host: {HOST}\nexecutor: local\n")
    (own / "bare.yaml").write_text("executor: local\n")
    env = {**far.environment, "HPCRUN_CLUSTERS": str(own)}
    words = ("plan", "experiments/e.yaml", "cluster=big", "--json")
    done = command.hpcrun("--on", "big", *words, cwd=project, env=env)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["cluster"]["name"] == "big"
    (own / "slurm.yaml").write_text("host: login7\n")
    env["PATH"] = str(Path(sys.executable).parent)
    words = ("submit", "experiments/e.yaml", "cluster=slurm")
    here = command.hpcrun(*words, cwd=project, env=env)
    assert here.returncode == 4
    assert "`hpcrun --on slurm submit …` runs it on login7" in here.stderr
    bare = command.hpcrun("--on", "bare", "status", cwd=project, env=env)
    assert bare.returncode == 2
    assert "has no host" in bare.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--on", "nowhere", "status"], "nowhere does not answer"),
        (["--on", "-oProxyCommand=touch x", "status"], "is no name of a host"),
        (["--on", HOST], "what is to run on far?"),
        (["on"], "Missing argument 'CLUSTER'"),
        (["--on", "far:22", "status"], "--on ssh://far:22"),
        (["--on", "sluurm-lab", "status"], "did you mean the profile slurm-lab?"),
        (["--on", "typo", "status"], "did you mean host where it has hots?"),
        (["status", "--on", HOST, "e"], "hpcrun --on far status e"),
        (["plan", "--on=far", "e.yaml"], "hpcrun --on far plan e.yaml"),
    ],
)
def test_what_is_typed_wrong(far: FarHost, tmp_path: Path, words: list[str], said: str) -> None:
    own = tmp_path / "profiles"
    own.mkdir()
    (own / "slurm-lab.yaml").write_text(f"host: {HOST}\n")
    (own / "typo.yaml").write_text(f"hots: {HOST}\n")
    env = {**far.environment, "HPCRUN_CLUSTERS": str(own)}
    done = command.hpcrun(*words, cwd=tmp_path, env=env)
    assert done.returncode == (4 if "answer" in said or "profile" in said else 2)
    assert said in done.stderr
    assert not list(tmp_path.glob("x*"))


def test_there_is_no_ssh(tmp_path: Path) -> None:
    env = {"HPCRUN_SSH": str(tmp_path / "none")}
    done = command.hpcrun("--on", HOST, "status", cwd=tmp_path, env=env)
    assert done.returncode == 1
    assert "no such command" in done.stderr


def test_there_is_no_python_there(far: FarHost, tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("sh", "bash", "sed", "env"):
        (tools / name).symlink_to(f"/bin/{name}")
    (far.home / ".bash_profile").write_text(f"PATH={tools}\n")
    done = _on(far, "status", cwd=tmp_path)
    assert done.returncode == 1
    assert "has no Python that hpcrun runs with" in done.stderr


def test_a_login_shell_that_prints_spoils_nothing(far: FarHost, tmp_path: Path) -> None:
    (far.home / ".bash_profile").write_text("echo Welcome; echo quota >&2\n")
    done = _on(far, "list", "--json", cwd=tmp_path)
    assert json.loads(done.stdout) == [] if done.returncode == 0 else "no experiment" in done.stderr
    assert "Welcome" not in done.stdout
    assert "quota" not in done.stderr.partition("bringing")[2]


def test_a_connection_that_is_lost_in_a_command_is_told(far: FarHost, project: Path) -> None:
    text = far.program.read_text()
    # Its first session answers; the command's, and the requests after it, end as a lost one does.
    cut = 'case "$*" in *"\\"words\\""*) kill "$(cat {0})"; exit 255 ;; esac\n'
    pid = far.home / "pid"
    text = text.replace("cd '", f"{cut.format(repr(str(pid)))}echo $$ >'{pid}'\ncd '", 1)
    far.program.write_text(text)
    done = _on(far, "submit", "experiments/e.yaml", cwd=project)
    assert done.returncode == 4
    assert "was lost while the command ran there" in done.stderr
    assert f"hpcrun --on {HOST} status" in done.stderr


def test_a_hostile_host_cannot_harm_the_terminal(far: FarHost, tmp_path: Path) -> None:
    _on(far, "status", cwd=tmp_path)
    copy = next((far.home / ".local/share/hpcrun/on/copies").iterdir())
    assert copy.name == own_copy.digest()
    hostile = (
        r"\x1b]52;c;ZXZpbA==\x07\x1b]0;title\x07\x1b[6n\x1bP$q\x1b\\\x1b[21t\x1b[31mred\x1b[0m"
    )
    (copy / "hpcrun" / "__main__.py").write_text(
        f"import sys\ndef main():\n    sys.stdout.write('{hostile} \\x9b6n end\\n')\n"
        f"    sys.stderr.write('{hostile} end\\n')\n"
    )
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "hpcrun", "--on", HOST, "status"],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        cwd=tmp_path,
        env={**os.environ, **far.environment, "TERM": "xterm"},
    )
    os.close(slave)
    shown = b""
    until = time.monotonic() + 30
    while time.monotonic() < until:
        try:
            data = os.read(master, 4096)
        except OSError:
            break
        if not data:
            break
        shown += data
    process.wait(10)
    os.close(master)
    assert b"\x1b[31mred" in shown
    assert shown.count(b" end") == 2
    for harm in (b"\x1b]", b"\x1b[6n", b"\x1bP", b"\x1b[21t", b"\xc2\x9b"):
        assert harm not in shown


def test_logs_go_on_where_they_were_after_a_cut(far: FarHost, project: Path) -> None:
    lines = 60
    (project / "train.py").write_text(
        "import time\n"
        f"for number in range({lines}):\n    print('line', number, flush=True)\n"
        "    time.sleep(0.1)\n"
    )
    assert _on(far, "submit", "experiments/e.yaml", cwd=project).returncode == 0
    words = [sys.executable, "-m", "hpcrun", "--on", HOST, "logs", "-f", "e"]
    environment = {**os.environ, **far.environment}
    shown, said = project / "out", project / "err"
    with shown.open("wb") as out, said.open("wb") as err:
        process = subprocess.Popen(words, cwd=project, env=environment, stdout=out, stderr=err)
    until(lambda: shown.read_bytes().count(b"\n") > 10, "lines")
    # Both sessions at once, as where the network goes.
    for entry in Path("/proc").iterdir():
        with_far = entry.name.isdigit() and _is_of(entry, str(far.home))
        if with_far:
            os.kill(int(entry.name), signal.SIGKILL)
    assert process.wait(60) == 0
    assert "trying again" in said.read_text()
    # One of the end that was killed stays for a while.
    assert len(list((far.home / ".local/share/hpcrun/on").glob("scratch-*"))) <= 1
    assert shown.read_text() == "".join(f"line {number}\n" for number in range(lines))


def _is_of(entry: Path, home: str) -> bool:
    """Whether a process is the other end of a connection of this test's."""
    try:
        words = (entry / "cmdline").read_bytes().split(b"\0")
        environment = (entry / "environ").read_bytes().split(b"\0")
    except OSError:
        return False
    is_end = any(b"other_end" in one or b"exec(sys.stdin" in one for one in words)
    return is_end and f"HOME={home}".encode() in environment

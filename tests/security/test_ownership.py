"""Whose it is: files' owners decide, and nothing that is another's, or behind a link, is acted on.

`ME` types the commands and `STRANGER` has prepared what they find, both as real users. Slurm's
commands are stand-ins that note how they were called.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from hpcrun.control import cleanup, removal
from hpcrun.errors import HpcrunError
from hpcrun.observe.read.selection import Finder
from hpcrun.run.node import op_cache
from hpcrun.slurm import client
from hpcrun.state import files, layout, ledger
from hpcrun.state.manifest import File, Manifest
from hpcrun.submission.local import processes
from tests.support import command, users
from tests.support.experiment import T0, Experiment, shim_calls, slurm_shim
from tests.support.nfs import Host
from tests.support.plans import command_plan, submission_of
from tests.support.slurm_shim import Shim
from tests.support.users import ME, STRANGER
from tests.support.waiting import until

pytestmark = users.needs_root

ALL = ("--yes", "--checkpoints", "all", "--logs")


class Shared:
    """A root that all may write to, as some shared storage is, and Slurm's stand-ins."""

    def __init__(self, place: Path) -> None:
        self.place, self.root = place, place / "root"
        self.root.mkdir()
        self.root.chmod(0o777)
        self.bin = slurm_shim(place / "bin", squeue="100|RUNNING|None|node1|N/A\n")
        for name in ("scontrol", "srun", "sinfo"):
            (self.bin / name).write_text((self.bin / "scancel").read_text())
        for program in self.bin.iterdir():
            program.chmod(0o755)
        ME.owns(self.bin)

    def experiment(self, name: str = "study") -> Experiment:
        return Experiment(self.root, name)

    def hpcrun(
        self, *arguments: str, user: users.User = ME, timeout: float = 60
    ) -> subprocess.CompletedProcess[str]:
        path = f"{self.bin}:/usr/bin:/bin"
        return user.hpcrun(
            *arguments, home=self.place, root=self.root, env={"PATH": path}, timeout=timeout
        )

    def called(self, *programs: str) -> list[str]:
        """The calls of those of Slurm's commands that change something."""
        return [call for call in shim_calls(self.bin) if call.split()[0] in programs]


@pytest.fixture
def shared(open_place: Path) -> Shared:
    return Shared(open_place)


def planted(shared: Shared, name: str) -> Path:
    """A submission on this machine whose one run leaves a file; returns that file."""
    code = shared.place / "code"
    code.mkdir()
    taken = shared.place / "taken"
    environment = {"python": users.PYTHON}
    plan = command_plan(code, {0: ["touch", str(taken)]}, environment=environment)
    submission = submission_of(plan, shared.place)
    files.write_json(
        submission.submission, {**files.read_json(submission.submission), "user": ME.name}
    )
    submission.experiment.directory.rename(shared.root / name)
    return taken


def refused(shared: Shared, where: str, taken: Path, told: str) -> None:
    """Check that a requeue of mine says why not, and that the planted command never runs."""
    done = shared.hpcrun("requeue", where, "--yes")
    if done.returncode == 0:
        until(taken.exists, "the stranger's command ran", 20)
    assert not taken.exists()
    assert done.returncode == 2, done.stderr
    assert told in done.stderr


# --- a stranger's records -----------------------------------------------------------------------


def test_a_strangers_plan_is_not_requeued_as_me(shared: Shared) -> None:
    """Its ``submission.json`` says that it is mine, and I may write to it."""
    taken = planted(shared, "study")
    for path in (shared.root / "study").rglob("*"):
        path.chmod(0o777)
    (shared.root / "study").chmod(0o777)
    STRANGER.owns(shared.root / "study")
    refused(shared, "study", taken, f"study: these runs are {STRANGER.name}'s")


def test_a_strangers_submission_in_my_experiment_is_not_requeued(shared: Shared) -> None:
    """Somebody of my group, who may write to my experiment, plans my run anew."""
    taken = planted(shared, "study")
    ME.owns(shared.root / "study")
    submissions = layout.experiment(shared.root, "study").submissions_directory
    (submissions / "1").rename(submissions / "2")
    STRANGER.owns(submissions / "2")
    refused(shared, "study/0", taken, f"{submissions / '2'} is {STRANGER.name}'s")


def test_cancel_ends_no_job_that_a_stranger_names(shared: Shared) -> None:
    study = shared.experiment()
    study.submit((0,), who=ME.name)
    study.start(0)
    for path in (study.paths.directory, *study.paths.directory.rglob("*")):
        path.chmod(0o777)
    STRANGER.owns(study.paths.directory)
    done = shared.hpcrun("cancel", "study", "--yes")
    assert done.returncode == 2, done.stderr
    assert shared.called("scancel") == []
    assert ledger.intent(study.run()) is None


def test_a_stranger_who_names_my_job_does_not_keep_me_from_ending_it(shared: Shared) -> None:
    for name, user in (("mine", ME), ("theirs", STRANGER)):
        one = shared.experiment(name)
        one.submit((0,), who=user.name)
        one.start(0)
        user.owns(one.paths.directory)
    done = shared.hpcrun("cancel", "100", "--yes")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "mine/0: cancelled (job 100)\n"
    assert shared.called("scancel") == ["scancel 100"]


def test_a_link_to_my_own_experiment_is_not_the_strangers_to_lay(shared: Shared) -> None:
    """A name that a stranger chose leads to my runs: what I am asked about is another name."""
    study = shared.experiment("mine")
    study.submit((0,), who=ME.name)
    study.start(0)
    ME.owns(study.paths.directory)
    link = shared.root / "theirs"
    link.symlink_to(study.paths.directory)
    STRANGER.owns(link)
    done = shared.hpcrun("cancel", "theirs", "--yes")
    assert done.returncode == 2, done.stderr
    assert shared.called("scancel") == []


def test_what_every_user_may_write_is_not_acted_on(shared: Shared) -> None:
    study = shared.experiment()
    paths = study.submit((0,), who=ME.name)
    study.start(0)
    ME.owns(study.paths.directory)
    paths.journal.chmod(0o666)
    done = shared.hpcrun("cancel", "study", "--yes")
    assert done.returncode == 2
    assert f"{paths.journal} may be written by every user" in done.stderr
    assert shared.called("scancel") == []


def test_a_strangers_experiment_is_not_listed_as_mine(shared: Shared) -> None:
    for name, user in (("mine", ME), ("theirs", STRANGER)):
        one = shared.experiment(name)
        one.submit((0,), who=ME.name, when=T0 + (user == STRANGER))
        user.owns(one.paths.directory)
    listed = json.loads(shared.hpcrun("list", "--json").stdout)
    assert {one["name"]: one["user"] for one in listed} == {
        "mine": ME.name,
        "theirs": STRANGER.name,
    }
    newest = json.loads(shared.hpcrun("status", "--json").stdout)
    assert {one["experiment"] for one in newest} == {"mine"}


def test_root_acts_on_nobodys_runs(shared: Shared) -> None:
    """A user writes that the runs are root's, and that the job of another one is theirs."""
    study = shared.experiment()
    study.submit((0,), who="root")
    study.start(0)
    STRANGER.owns(study.paths.directory)
    path = f"{shared.bin}:{os.environ['PATH']}"
    done = command.hpcrun("cancel", "study", "--yes", root=shared.root, env={"PATH": path})
    assert done.returncode == 2, done.stderr
    assert f"runuser -u {STRANGER.name} -- hpcrun" in done.stderr
    assert shared.called("scancel") == []


def test_a_strangers_compiled_operators_are_not_run_as_me(tmp_path: Path) -> None:
    """Who came first under a shared root has compiled for all, or says so."""
    library = STRANGER.write(tmp_path / "cache" / "key" / "deepspeed_shm_comm" / "x.so", "evil")
    copy = tmp_path / "copy"
    with pytest.raises(HpcrunError, match=rf"{library}, a compiled operator, is another user's"):
        op_cache.copy(tmp_path / "cache", "key", copy)
    assert "evil" not in {path.read_text() for path in copy.rglob("*.so")}


# --- ids of jobs and processes ------------------------------------------------------------------


def test_no_word_but_the_id_of_a_job_reaches_scancel(shared: Shared) -> None:
    """Each bad line costs its own run."""
    study = shared.experiment()
    bad = ["--user=root", "100 --me", "100,101", "100_[0-9]", "\u00b2", "-1", "1\n"]
    for number, job_id in enumerate(bad):
        study.submit((number,), job_id=job_id, who=ME.name)
        study.start(number, job_id=job_id, submission=number + 1)
    study.submit((len(bad),), job_id="100", who=ME.name)
    ME.owns(study.paths.directory)
    done = shared.hpcrun("cancel", "study", "--yes")
    assert done.returncode == 0, done.stderr
    assert shared.called("scancel") == ["scancel 100"]
    assert ledger.intent(study.run(0)) == ledger.CANCELLED


@pytest.mark.parametrize("word", ["--user=root", "incomplete", "1,2", "1_[0-9]", "1 2", ""])
def test_the_client_of_slurm_passes_on_ids_and_names_alone(shim: Shim, word: str) -> None:
    for program in ("scancel", "scontrol", "sacct", "squeue"):
        shim.answer(program, {})
    assert client.requeue(word) is not None
    assert client.exclude_nodes(word, "n1") is not None
    assert client.exclude_nodes("1", "--all") is not None
    assert client.job_problem(word) is not None
    assert client.show("job", word) == client.show("node", "--all") == {}
    assert client.accounting(word, ("JobID",)) == []
    assert not client.signal_step(word, "KILL")
    assert shim.calls == []


def test_a_strangers_process_is_not_taken_for_a_run_of_mine(open_place: Path) -> None:
    """Root could end it, by the variable that everybody may set."""
    theirs = subprocess.Popen(
        ["sleep", "60"], **STRANGER.options(open_place, env={processes.SUBMISSION: str(open_place)})
    )
    try:
        assert processes.kill_all(open_place) == 0
        assert theirs.poll() is None
    finally:
        theirs.kill()
        theirs.wait()


def test_a_process_that_is_gone_does_not_live_for_want_of_a_start_time() -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    entry = {"host": os.uname().nodename, "job_id": f"local:{gone.pid}"}
    assert not processes.alive(entry)


# --- clean, through links -----------------------------------------------------------------------


def save(run: layout.RunPaths, step: int) -> Path:
    """A complete checkpoint."""
    directory = run.checkpoint(step, 1)
    directory.mkdir(parents=True)
    (directory / "weights.pt").write_bytes(b"w" * 100)
    Manifest(step, 1, T0, 2, 2, 8, {"weights.pt": File(100, sha256="0" * 64)}).write(directory)
    return directory


def failed(study: Experiment, *numbers: int, who: str = ME.name) -> None:
    """Runs that failed, each with a log and a checkpoint."""
    study.submit(numbers, who=who)
    for number in numbers:
        study.start(number, job_id=f"100_{number}")
        study.log(number, 1, 0, "step 1\n")
        study.end(number, outcome="failed", kind="rank_crash", message="x")
        save(study.run(number), 10)


def content(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*")}


def test_clean_follows_no_link_out_of_the_experiment(shared: Shared) -> None:
    study, precious = shared.experiment(), shared.place / "precious"
    failed(study, 1, 2, 3, 4, 5)
    # What is mine elsewhere, and looks like parts of a run.
    other = layout.RunPaths(precious)
    save(other, 20)
    for name in ("1/thesis.log", "thesis.log"):
        path = other.attempts_directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("years of work")
    for link, target in (
        (study.run(1).checkpoints, other.checkpoints),
        (study.run(2).attempts_directory, other.attempts_directory),
        (study.run(3).attempt(1).directory, other.attempt(1).directory),
    ):
        link.rename(link.with_name("moved"))
        link.symlink_to(target)
    run = study.run(4)
    run.attempt(1).rank_log(1).symlink_to(other.attempts_directory / "thesis.log")
    run.checkpoint(20, 1).symlink_to(other.checkpoint(20, 1))
    climb = "x/../../../../../precious/attempts/thesis"
    # By an id of a job that climbs out of the submission.
    climbing = study.submit((6,), job_id=climb, who=ME.name)
    climbing.directory.joinpath("slurm-x").mkdir()
    study.start(6, job_id="100_6")
    study.end(6, outcome="failed", kind="rank_crash", message="x")
    ME.owns(study.paths.directory, precious)
    before = content(precious)
    done = shared.hpcrun("clean", "study", *ALL)
    assert done.returncode == 0, done.stderr
    assert content(precious) == before
    assert f"study/1: {study.run(1).checkpoints}: a link" in done.stderr
    assert run.checkpoint(20, 1).is_symlink()
    assert run.attempt(1).rank_log(1).is_symlink()
    # All else was done as ever.
    for number in (4, 5):
        assert not study.run(number).checkpoint(10, 1).exists()
        assert not study.run(number).attempt(1).rank_log(0).exists()


@pytest.mark.parametrize("part", ["runs", "runs/1", "submissions", "submissions/1"])
def test_clean_refuses_an_experiment_whose_parts_are_links(shared: Shared, part: str) -> None:
    study, precious = shared.experiment(), shared.place / "precious"
    failed(study, 1)
    link = study.paths.directory / part
    link.rename(precious)
    link.symlink_to(precious)
    ME.owns(study.paths.directory, precious)
    before = content(precious)
    done = shared.hpcrun("clean", "study", *ALL)
    assert done.returncode == 2
    assert f"{link} is a link to {precious}" in done.stderr
    assert content(precious) == before


def test_a_link_that_appears_between_the_look_and_the_removal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study, precious = Experiment(tmp_path / "root"), tmp_path / "precious"
    failed(study, 1, who="root")
    run, find = study.run(1), cleanup.find

    def swapped(*arguments: object) -> list[cleanup.Leftovers]:
        found = find(*arguments)  # type: ignore[arg-type]
        if precious.exists():
            run.checkpoints.rename(tmp_path / "moved")
            run.checkpoints.symlink_to(precious)
        return found

    monkeypatch.setenv("PATH", str(slurm_shim(tmp_path / "bin")), prepend=os.pathsep)
    choice = cleanup.CleanupChoice(everything=True)
    found = find(Finder(tmp_path / "root").resolve(["study"]), choice, print)
    assert [item.kind for item in found[0].items] == [cleanup.CHECKPOINT]
    save(layout.RunPaths(tmp_path / "other"), 10)
    layout.RunPaths(tmp_path / "other").checkpoints.rename(precious)
    before = content(precious)
    monkeypatch.setattr(cleanup, "find", swapped)
    with pytest.raises(HpcrunError, match="a link"):
        cleanup.remove_all(found, choice, print)
    assert content(precious) == before


def test_clean_names_what_it_will_remove(shared: Shared) -> None:
    study = shared.experiment()
    failed(study, 1)
    ME.owns(study.paths.directory)
    done = shared.hpcrun("clean", "study", "--dry-run", "-v", *ALL[1:])
    assert f"study/1: checkpoint {study.run(1).checkpoint(10, 1)} (" in done.stderr
    assert f"study/1: log {study.run(1).attempt(1).rank_log(0)} (7 B)" in done.stderr
    assert study.run(1).checkpoint(10, 1).exists()


# --- submit into what others have prepared ------------------------------------------------------


@pytest.mark.parametrize("whose", ["experiment", "lock"])
def test_submit_does_not_wait_for_a_strangers_lock(shared: Shared, whose: str) -> None:
    """The lock names a process that lives for ever: that of pid 1."""
    spec = {"name": "study", "cluster": "local", "entry": ["true"]}
    ME.write(shared.place / "specs" / "study.yaml", json.dumps(spec))
    paths = layout.experiment(shared.root, "study")
    ticks = Path("/proc/1/stat").read_text().rpartition(")")[2].split()[19]
    lock = paths.submit_lock / f"{os.uname().nodename}:1:{ticks}"
    STRANGER.write(lock)
    for path in (paths.directory, paths.submit_lock):
        path.chmod(0o777)
    if whose == "lock":
        os.chown(paths.directory, ME.uid, ME.gid)
        paths.directory.chmod(0o775)
    done = shared.hpcrun("submit", str(shared.place / "specs" / "study.yaml"), timeout=30)
    assert done.returncode == 2, done.stderr
    assert f"{STRANGER.name}'s" in done.stderr
    assert content(paths.directory) == {"submit.lock", f"submit.lock/{lock.name}"}


def test_submit_says_who_could_put_other_code_in_place_of_mine(shared: Shared) -> None:
    """A job reads its frozen code when it starts, hours after a shared root could be renamed in."""
    spec = {"name": "study", "cluster": "local", "entry": ["true"]}
    ME.write(shared.place / "specs" / "study.yaml", json.dumps(spec))
    for mode, told in ((0o777, True), (0o1777, False)):
        shared.root.chmod(mode)
        done = shared.hpcrun("submit", str(shared.place / "specs" / "study.yaml"), "--wait")
        assert done.returncode == 0, done.stderr
        said = f"{shared.root}: every user may rename what lies in it" in done.stderr
        assert said == told, done.stderr


def test_a_strangers_sbatch_is_not_waited_for(open_place: Path) -> None:
    script = str(open_place / "script-0.sbatch")
    waiting = [users.PYTHON, "-c", "import time; time.sleep(60)", "sbatch", script]
    theirs = subprocess.Popen(waiting, **STRANGER.options(open_place))
    try:
        assert not processes.runs("sbatch", script)
    finally:
        theirs.kill()
        theirs.wait()


def test_a_report_takes_the_place_of_no_device(shared: Shared) -> None:
    """Root's reports, too: on a machine without /dev/null little works."""
    study = shared.experiment()
    failed(study, 1)
    device = shared.place / "null"
    os.mknod(device, 0o20666, os.makedev(1, 3))
    done = command.hpcrun("report", "study", "--force", "-o", device, root=shared.root)
    assert device.is_char_device()
    assert done.returncode == 2
    assert f"{device} is no regular file" in done.stderr


# --- what stays ---------------------------------------------------------------------------------


def test_my_own_experiment_on_other_storage_is_still_mine(shared: Shared) -> None:
    study = Experiment(shared.place / "archive")
    failed(study, 1)
    link = shared.root / "study"
    link.symlink_to(study.paths.directory)
    ME.owns(study.paths.directory, link)
    done = shared.hpcrun("clean", "study", *ALL)
    assert done.returncode == 0, done.stderr
    assert not study.run(1).checkpoint(10, 1).exists()


def test_files_that_this_host_has_open_are_left_for_the_next_removal(
    two_hosts: tuple[Host, Host], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client of NFS keeps them under another name, so that their directory is not empty."""
    _, here = two_hosts
    # As whom root is known there.
    os.chown(here.path.parent / "server", 65534, 65534)
    monkeypatch.setattr(os, "geteuid", lambda: 65534)
    deep = here / "run" / "logs" / "deep"
    deep.mkdir(parents=True)
    for path in (deep / "open.log", deep.parent / "closed.log"):
        path.write_text("text")
    with (deep / "open.log").open() as held:
        removal.remove(here.path, here / "run")
        assert [path.name for path in deep.parent.iterdir()] == ["deep"]
        assert held.read() == "text"
    until(lambda: not [*deep.iterdir()], "closed", 5)
    removal.remove(here.path, here / "run")
    assert not (here / "run").exists()
    (here / "run" / "kept").mkdir(parents=True)
    with pytest.raises(OSError, match="not empty"):
        removal.rmdir(here / "run")

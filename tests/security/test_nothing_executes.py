"""Nothing is executed by `plan`, by ``submit --dry-run``, or by a look at other people's files.

The attacks plant a program where something might start it; each leaves the file ``ran`` if it runs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpcrun.submission.code.code_files import CodeScope
from tests.support import command
from tests.support.users import ME, PYTHON, STRANGER, needs_root

SPEC = "name: study\nentry: [echo, hello]\ncluster: local\n"


@pytest.fixture
def ran(tmp_path: Path) -> Path:
    return tmp_path / "ran"


@pytest.fixture
def payload(tmp_path: Path, ran: Path) -> Path:
    """A program that leaves `ran` and passes its input on."""
    path = tmp_path / "payload.sh"
    path.write_text(f"#!/bin/sh\necho ran >>'{ran}'\ncat\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def code(tmp_path: Path) -> Path:
    """A spec with a script, in a git checkout with one commit."""
    root = tmp_path / "code"
    root.mkdir()
    (root / "study.yaml").write_text(SPEC)
    (root / "train.py").write_text("print('hello')\n")
    git(root, "init", "-q")
    git(root, "add", ".")
    git(root, "commit", "-qm", "one")
    return root


def git(root: Path, *arguments: str | Path) -> None:
    identity = ["-c", "user.name=A", "-c", "user.email=a@example.org"]
    subprocess.run(["git", "-C", root, *identity, *arguments], check=True, capture_output=True)


def hpcrun(cwd: Path, *arguments: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    return command.hpcrun(*arguments, cwd=cwd, root=cwd.parent / "root", **options)


# What a checkout can be made to execute: each plants the program, and asks for a look at files.


def _monitor(root: Path, payload: Path) -> None:
    git(root, "config", "core.fsmonitor", str(payload))


def _monitor_of_an_included_file(root: Path, payload: Path) -> None:
    (root / ".git" / "more").write_text(f"[core]\n\tfsmonitor = {payload}\n")
    git(root, "config", "include.path", "more")


def _filter(root: Path, payload: Path) -> None:
    git(root, "config", "filter.shady.clean", str(payload))
    (root / ".git" / "info" / "attributes").write_text("* filter=shady\n")
    _touch(root)


def _process(root: Path, payload: Path) -> None:
    git(root, "config", "filter.shady.process", str(payload))
    git(root, "config", "filter.shady.required", "true")
    (root / ".gitattributes").write_text("* filter=shady\n")
    _touch(root)


def _filter_with_an_equals_sign(root: Path, payload: Path) -> None:
    with (root / ".git" / "config").open("a") as config:
        config.write(f'[filter "a=b"]\n\tclean = {payload}\n')
    (root / ".git" / "info" / "attributes").write_text("* filter=a=b\n")
    _touch(root)


def _hook(root: Path, payload: Path) -> None:
    git(root, "config", "core.hooksPath", "hooks")
    (root / "hooks").mkdir()
    for name in ("post-index-change", "pre-commit", "fsmonitor-watchman"):
        (root / "hooks" / name).symlink_to(payload)
    _touch(root)


def _submodule(root: Path, payload: Path) -> None:
    inner = root / "vendor"
    inner.mkdir()
    (inner / "a.py").write_text("")
    git(inner, "init", "-q")
    git(inner, "add", ".")
    git(inner, "commit", "-qm", "one")
    git(root, "add", "vendor")
    git(root, "commit", "-qm", "two")
    _filter(inner, payload)
    _monitor(inner, payload)


def _checkout_elsewhere(root: Path, payload: Path) -> None:
    other = root.parent / "elsewhere"
    (root / ".git").rename(other)
    (root / ".git").write_text(f"gitdir: {other}\n")
    git(root, "config", "core.fsmonitor", str(payload))


def _lazy_fetch(root: Path, payload: Path) -> None:
    """A partial clone without the objects of its commit, which git would fetch."""
    for setting in (
        ("core.repositoryFormatVersion", "1"),
        ("extensions.partialClone", "origin"),
        ("remote.origin.promisor", "true"),
        ("remote.origin.url", f"ext::{payload}"),
        ("protocol.ext.allow", "always"),
    ):
        git(root, "config", *setting)
    for path in (root / ".git" / "objects").glob("??/*"):
        path.unlink()
    _touch(root)


def _touch(root: Path) -> None:
    for path in root.glob("*.*"):
        os.utime(path, (1, 1))


PLANTED = [
    _monitor,
    _monitor_of_an_included_file,
    _filter,
    _process,
    _filter_with_an_equals_sign,
    _hook,
    _submodule,
    _checkout_elsewhere,
    _lazy_fetch,
]


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__.strip("_"))
def test_a_checkout_executes_nothing(
    plant: Callable[[Path, Path], None], code: Path, payload: Path, ran: Path
) -> None:
    from hpcrun.compile import compile_spec
    from hpcrun.compile.freeze import freeze
    from hpcrun.submission.code import snapshot

    plant(code, payload)
    (code / "study.yaml").write_text("name: study\nentry: train.py\ncluster: local\n")
    freeze(compile_spec(code / "study.yaml"))
    snapshot.freeze(CodeScope(code), code.parent / "frozen")
    assert not ran.exists()


def test_a_monitor_of_a_checkout_does_not_run_at_plan(code: Path, payload: Path, ran: Path) -> None:
    _monitor(code, payload)
    (code / "study.yaml").write_text("name: study\nentry: train.py\ncluster: local\n")
    done = hpcrun(code, "plan", "study.yaml")
    assert done.returncode == 0, done.stderr
    assert not ran.exists()


@pytest.mark.parametrize(
    ("program", "arguments"),
    [("git", ("plan",)), ("bash", ("submit", "--dry-run")), ("timeout", ("submit",))],
)
def test_a_program_beside_the_spec_does_not_run(
    program: str, arguments: tuple[str, ...], code: Path, payload: Path, ran: Path
) -> None:
    (code / program).symlink_to(payload)
    # Found by the command, and called through `timeout`.
    (code / "sbatch").symlink_to(payload)
    cluster = "slurm" if program == "timeout" else "local"
    spec = f"name: study\nentry: train.py\ncluster: {cluster}\nenvironment: {{setup: ['true']}}\n"
    (code / "study.yaml").write_text(spec)
    # Slurm's own, after those: all refuse at once.
    slurm = code.parent / "slurm"
    slurm.mkdir()
    for name in ("sbatch", "squeue", "sinfo", "sacct", "scontrol", "sacctmgr"):
        (slurm / name).write_text("#!/bin/sh\necho invalid partition >&2\nexit 1\n")
        (slurm / name).chmod(0o755)
    env = {"PATH": f".::{slurm}:{os.environ['PATH']}"}
    hpcrun(code, arguments[0], "study.yaml", *arguments[1:], env=env)
    assert not ran.exists()


MODULES = ("json", "yaml", "click", "submitit", "hashlib", "shlex", "tempfile", "subprocess")


def _plant_modules(directory: Path, ran: Path) -> None:
    for name in MODULES:
        text = f"open({str(ran)!r}, 'a').write({name!r}); raise ImportError('planted')\n"
        (directory / f"{name}.py").write_text(text)


@pytest.mark.parametrize("arguments", [("plan",), ("submit", "--dry-run"), ("submit", "--wait")])
def test_modules_beside_the_spec_are_not_imported(
    arguments: tuple[str, ...], tmp_path: Path, ran: Path
) -> None:
    place = tmp_path / "place"
    place.mkdir()
    (place / "study.yaml").write_text(SPEC)
    _plant_modules(place, ran)
    verb, *options = arguments
    done = hpcrun(place, verb, "study.yaml", *options)
    assert done.returncode == 0, done.stderr
    assert not ran.exists()


def test_an_empty_entry_of_pythonpath_is_not_the_current_directory(
    tmp_path: Path, ran: Path
) -> None:
    place = tmp_path / "place"
    place.mkdir()
    (place / "study.yaml").write_text(SPEC)
    # What Python itself imports before the command begins is out of its hands.
    text = f"open({str(ran)!r}, 'a'); raise ImportError('planted')\n"
    (place / "yaml.py").write_text(text)
    inherited = os.environ.get("PYTHONPATH", "")
    here = Path(__file__).parents[2]
    script = "from hpcrun.__main__ import main; main(['plan', 'study.yaml'])"
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=place,
        env={**os.environ, "PYTHONPATH": f":{here}:{inherited}".rstrip(":")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert not ran.exists()


@pytest.mark.parametrize("arguments", [("plan",), ("submit", "--dry-run")])
def test_neither_setup_lines_nor_the_jobs_python_run_before_the_job(
    arguments: tuple[str, ...], tmp_path: Path, payload: Path, ran: Path
) -> None:
    (tmp_path / "python").symlink_to(payload)
    (tmp_path / "study.yaml").write_text(
        f"{SPEC}environment:\n  python: ./python\n  setup: ['{payload} </dev/null']\n"
        f"  variables: {{BASH_ENV: '{payload}'}}\n"
    )
    done = hpcrun(tmp_path, arguments[0], "study.yaml", *arguments[1:])
    assert done.returncode == 0, done.stderr
    assert not ran.exists()


def test_bash_env_of_a_spec_is_not_read_on_this_node(
    tmp_path: Path, payload: Path, ran: Path
) -> None:
    from hpcrun.submission.python_probe import probe

    wrapper = tmp_path / "python"
    wrapper.write_text(f'#!/bin/bash\nexec {sys.executable} "$@"\n')
    wrapper.chmod(0o755)
    for setup in ((), ("true",)):
        found = probe(str(wrapper), setup=setup, variables={"BASH_ENV": str(payload)})
        assert found.version == "{}.{}.{}".format(*sys.version_info[:3])
    assert not ran.exists()


def _foreign_study(place: Path, extra: str = "") -> Path:
    """A spec of a stranger's, whose setup lines and Python would leave ``ran``."""
    mark = f"echo ran >>{place}/ran"
    python = STRANGER.write(place / "theirs" / "python", f"#!/bin/sh\n{mark}\nexit 3\n", 0o755)
    text = f"{SPEC}environment:\n  python: {python}\n  setup: ['{mark}']\n{extra}"
    (place / "theirs").chmod(0o755)
    return STRANGER.write(place / "theirs" / "study.yaml", text)


@needs_root
def test_a_strangers_spec_runs_in_the_job_alone(open_place: Path) -> None:
    spec = _foreign_study(open_place)
    home = open_place / "home"
    home.mkdir()
    ME.owns(home)
    root = {"HPCRUN_ROOT": str(home / "root")}
    before = open_place / "ran"
    # The local executor runs the job here: what runs before is seen in a submission that fails.
    script = (
        "import hpcrun.submission.feeder as feeder, hpcrun.__main__ as start\n"
        "feeder.send = lambda *_, **__: (_ for _ in ()).throw(SystemExit(77))\n"
        f"start.main(['submit', {str(spec)!r}])"
    )
    done = ME.run([PYTHON, "-c", script], home=home, env=root)
    assert done.returncode == 77, done.stderr
    assert "belongs to bin" in done.stderr
    assert "is not tried before the job" in done.stderr
    assert not before.exists()


@needs_root
@pytest.mark.parametrize("setup", [(), ("true",)])
def test_a_strangers_python_is_not_started_by_my_spec(
    setup: tuple[str, ...], open_place: Path
) -> None:
    from hpcrun.submission.python_probe import Unchecked, probe

    mark = open_place / "ran"
    python = STRANGER.write(open_place / "env" / "python", f"#!/bin/sh\necho >{mark}\n", 0o755)
    with pytest.raises(Unchecked, match="belongs to"):
        probe(str(python), setup=setup)
    # A link of theirs to the system's Python has their packages around it.
    link = open_place / "env" / "python3"
    link.symlink_to(PYTHON)
    STRANGER.owns(link)
    with pytest.raises(Unchecked, match="belongs to"):
        probe(str(link), setup=setup)
    assert not mark.exists()


@needs_root
def test_a_requeue_does_not_start_what_the_submission_left_alone(open_place: Path) -> None:
    from hpcrun.state.layout import experiment
    from hpcrun.submission.python_probe import unchecked

    submission = experiment(open_place, "study").submission(1)
    submission.directory.mkdir(parents=True)
    submission.submission.write_text(json.dumps({"python": {"unchecked": "because"}}))
    assert unchecked(submission) == "because"


def test_a_profile_that_hides_another_is_named(tmp_path: Path, ran: Path) -> None:
    (tmp_path / "configs" / "clusters").mkdir(parents=True)
    hiding = tmp_path / "configs" / "clusters" / "local.yaml"
    hiding.write_text(f"executor: local\nroot: {tmp_path}/root\nsetup: ['touch {ran}']\n")
    (tmp_path / "study.yaml").write_text(SPEC)
    for arguments in (("plan",), ("submit", "--dry-run")):
        done = hpcrun(tmp_path, arguments[0], "study.yaml", *arguments[1:])
        assert done.returncode == 0
        assert f"cluster local is {hiding}, which hides " in done.stderr
    assert not ran.exists()


@needs_root
def test_what_strangers_put_around_my_spec_in_tmp_is_no_part_of_it(open_place: Path) -> None:
    STRANGER.write(open_place / ".git" / "HEAD", "ref: refs/heads/main\n")
    profile = f"executor: local\nroot: {open_place}\nsetup: ['touch {open_place}/ran']\n"
    theirs = STRANGER.write(open_place / "configs" / "clusters" / "local.yaml", profile)
    for place in (open_place / "mine", open_place):
        spec = ME.write(place / "study.yaml", "name: study\nentry: [echo, hello]\ncluster: local\n")
        home = open_place / "home"
        home.mkdir(exist_ok=True)
        ME.owns(home)
        done = ME.hpcrun("plan", spec, "--json", home=home)
        assert done.returncode == 0, done.stderr
        plan = json.loads(done.stdout)
        assert plan["cluster"]["setup"] == []
        assert plan["code_root"] == str(place)
        assert str(theirs) not in done.stderr


@pytest.mark.parametrize(
    "value",
    [
        "!!python/object/apply:os.system ['touch {}']",
        "!!python/name:os.system",
        "!!python/object/new:subprocess.Popen [['touch', '{}']]",
        "${{eval:__import__('os').system('touch {}')}}",
        "{{{{ cycler.__init__.__globals__.os.system('touch {}') }}}}",
    ],
)
def test_values_are_data(value: str, tmp_path: Path, ran: Path) -> None:
    quoted = value.format(ran) if value.startswith("!!") else f'"{value.format(ran)}"'
    (tmp_path / "study.yaml").write_text(f"{SPEC}config:\n  lr: {quoted}\n")
    done = hpcrun(tmp_path, "plan", "study.yaml")
    assert done.returncode in (0, 2), done.stderr
    assert "Traceback" not in done.stderr
    assert not ran.exists()

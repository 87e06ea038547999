"""Shell scripts of the user's in a job: what they find, and how they start the ranks."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from hpcrun.errors import EXIT_FAILED, HpcrunError
from hpcrun.run.protocol.batch_script import DIRECTORY, BatchScript, batch_variables
from hpcrun.state.plan import Entry
from tests.support.place import Place, launch_of

SLURMS = {"SLURM_ARRAY_TASK_ID": "3", "SLURM_CPUS_PER_TASK": "1", "SLURM_NTASKS": "2"}


def _script(tmp_path: Path, text: str, **spec: Any) -> BatchScript:
    launch = launch_of(tmp_path, batch_script="around.sh", **spec)
    launch.directory_of(0).mkdir(parents=True)
    (launch.directory_of(0) / "around.sh").write_text(text)
    launch.write()
    found = BatchScript.of(launch.spec, launch.paths)
    assert found is not None
    return found


def _run(script: BatchScript, *ranks: str, **variables: str) -> subprocess.CompletedProcess[str]:
    given = {**os.environ, **variables}
    argv = script.around(ranks)
    own = {"env": given, "capture_output": True, "text": True, "check": False}
    return subprocess.run(argv, start_new_session=True, **own)


def test_ranks_have_what_the_lines_before_them_left(tmp_path: Path) -> None:
    text = "export PATH=/opt/x:$PATH\nmkdir sub; cd sub\nulimit -n 77; umask 027\n"
    script = _script(tmp_path, f'{text}sh "$HPCRUN_RANKS" || exit\necho after $OLDPWD\n')
    shown = f"echo $PATH; echo ${DIRECTORY}; ulimit -n; umask"
    done = _run(script, "sh", "-c", shown, PATH="/usr/bin:/bin")
    work = tmp_path / "study/runs/3/work"
    before, after = f"/opt/x:/usr/bin:/bin\n{work}/./sub\n", f"77\n0027\nafter {work}"
    assert done.stdout.replace("/./", "/") == before.replace("/./", "/") + after + "\n"


def test_what_follows_runs_only_after_a_good_end(tmp_path: Path) -> None:
    script = _script(tmp_path, 'sh "$HPCRUN_RANKS" || exit\necho after\n')
    done = _run(script, "sh", "-c", "exit 9")
    assert (done.returncode, done.stdout) == (9, "")


def test_nothing_in_the_background_outlives_it(tmp_path: Path) -> None:
    # Its output would stay open for as long.
    script = _script(tmp_path, 'sleep 1000 &\nsh "$HPCRUN_RANKS" || exit\nsleep 1001 &\nexit 5\n')
    assert _run(script, "true").returncode == 5


def test_the_first_line_says_the_shell(tmp_path: Path) -> None:
    script = _script(tmp_path, '#!/usr/bin/env sh\necho $0 $#\nsh "$HPCRUN_RANKS"\n')
    assert script.around(["true"])[-3:] == ["/usr/bin/env", "sh", "./around.sh"]
    assert _run(script, "true").stdout == "./around.sh 0\n"


def test_words_of_ranks_are_quoted(tmp_path: Path) -> None:
    script = _script(tmp_path, 'sh "$HPCRUN_RANKS"\n')
    assert _run(script, "printf", "%s|", "a b", "$HOME", "'").stdout == "a b|$HOME|'|"


def test_one_that_starts_no_ranks_has_failed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    script = _script(tmp_path, "exit 0\n")
    _run(script, "true")
    assert script.exit_code(0) == EXIT_FAILED
    assert "its ranks have not ended well; has it the line" in capfd.readouterr().out
    assert (script.exit_code(3), script.exit_code(None)) == (3, None)


def test_a_run_is_done_when_its_ranks_are(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    script = _script(tmp_path, 'sh "$HPCRUN_RANKS" || exit\nfalse\n')
    assert script.exit_code(_run(script, "true").returncode) == 0
    said = "around.sh ended with exit code 1, after its ranks were done"
    assert said in capfd.readouterr().out


def test_without_a_script_there_is_none(tmp_path: Path) -> None:
    launch = launch_of(tmp_path)
    assert BatchScript.of(launch.spec, launch.paths) is None


def test_without_srun_it_starts_one_rank_alone(tmp_path: Path) -> None:
    launch = launch_of(tmp_path, batch_script="around.sh")
    with pytest.raises(HpcrunError, match=r"around\.sh starts 2 ranks, which takes srun"):
        BatchScript.of(launch.spec, launch.paths, ranks=2)


def test_slurms_variables_are_those_that_sbatch_would_set(tmp_path: Path) -> None:
    launch = launch_of(tmp_path, resources={"cpus_per_task": None, "ntasks_per_node": None})
    work = str(launch.directory_of(0))
    none = ("SLURM_NTASKS_PER_NODE", "SLURM_NPROCS", "SLURM_TRES_PER_TASK", *SLURMS)
    of_all = {"TERM": "xterm", "SLURM_SUBMIT_DIR": work}
    assert batch_variables(launch, SLURMS) == {**dict.fromkeys(none), **of_all}
    launch = launch_of(tmp_path)
    assert batch_variables(launch, {}) == of_all
    assert batch_variables(launch, {"TERM": "linux"})["TERM"] == "linux"


def test_a_whole_attempt(tmp_path: Path) -> None:
    place = Place(tmp_path)
    try:
        (place.code / "around.sh").write_text(
            'X=$(cat data)\nexport X\nsh "$HPCRUN_RANKS" || exit\necho $X >after\n'
        )
        (place.code / "data").write_text("seven\n")
        place.submit("echo $X $RANK", batch_script="around.sh")
        assert place.supervise()[0] == 0
        assert place.output() == "seven 0\n"
        assert (place.run.work / "after").read_text() == "seven\n"
    finally:
        place.close()


def test_a_batch_script_as_the_entry_is_one_process_without_hpcruns_variables(
    tmp_path: Path,
) -> None:
    place = Place(tmp_path)
    try:
        entry = Entry("command", argv=("env",), framework="batch")
        place.submit(entry, nodes=2, ranks=4, framework="batch")
        assert place.supervise()[0] == 0
        assert [*place.run.attempt(1).rank_logs()] == [0]
        found = dict(line.split("=", 1) for line in place.output().splitlines())
        own = {"RANK", "WORLD_SIZE", "MASTER_ADDR", "OMP_NUM_THREADS", "GLOO_SOCKET_IFNAME"}
        assert not own & found.keys()
        assert found["SLURM_SUBMIT_DIR"] == str(place.run.work)
    finally:
        place.close()

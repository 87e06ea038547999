"""Lines and events that the agent writes for a program."""

from __future__ import annotations

import itertools
from pathlib import Path

from hpcrun.run.program.progress_writer import SeenProgressWriter, Thinning
from hpcrun.state import files, session_log
from hpcrun.state.layout import AttemptPaths
from hpcrun.state.metrics_file import Line


def test_a_week_of_lines_every_second_is_bounded() -> None:
    thinning = Thinning(dense=100)
    kept = [second for second in range(7 * 86_400) if thinning.keeps(float(second))]
    assert kept[:100] == list(range(100))
    assert len(kept) < 100 * 12
    gaps = [after - before for before, after in itertools.pairwise(kept)]
    assert max(gaps) < 0.011 * 7 * 86_400


def test_the_last_of_very_many_lines_is_kept(tmp_path: Path) -> None:
    """A script of 1,000,000 lines "reached step 999,776"."""
    paths = AttemptPaths(tmp_path)
    writer = SeenProgressWriter(paths)
    lines = [Line(step, 5.0 + step / 1_000, {"loss": 1 / step}) for step in range(1, 4_003)]
    for at in range(0, len(lines), 2_000):
        writer.lines(lines[at : at + 2_000])
    assert len(list(files.read_lines(paths.metrics))) < 4_000
    writer.last()
    assert files.last_line(paths.metrics) == {"step": 4_002, "time": 5.0 + 4.002, "loss": 1 / 4_002}
    assert not writer.is_foreign
    writer.lines([Line(4_003, 1e6, {})])
    writer.last()
    assert [one["step"] for one in files.read_lines(paths.metrics)][-2:] == [4_002, 4_003]


def test_a_program_that_writes_there_itself_is_noticed(tmp_path: Path) -> None:
    paths = AttemptPaths(tmp_path)
    writer = SeenProgressWriter(paths)
    writer.lines([Line(1, 5.0, {"loss": 0.5})])
    assert not writer.is_foreign
    assert list(files.read_lines(paths.metrics)) == [{"step": 1, "time": 5.0, "loss": 0.5}]
    files.append(paths.metrics, {"step": 2})
    assert writer.is_foreign


def test_a_session_of_the_programs_own_is_noticed(tmp_path: Path) -> None:
    paths = AttemptPaths(tmp_path)
    writer = SeenProgressWriter(paths)
    writer.event(session_log.SEEN, step=3)
    writer.saved(3, "out/ckpt.pt", 10, 5.0)
    assert not writer.has_session
    assert session_log.read(paths).saved_step == 3
    files.append(paths.session, session_log.record(session_log.FINISHED))
    assert not writer.has_session, "the worker writes that"
    files.append(paths.session, session_log.record(session_log.RESTORED, step=0))
    assert writer.has_session

"""The names of files, held as they are: scripts of users and older runs depend on them."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcrun.state import layout


def test_the_tree_is_as_its_drawing_says(tmp_path: Path) -> None:
    experiment = layout.experiment(tmp_path, "study")
    submission, run = experiment.submission(1), experiment.run(3)
    attempt = run.attempt(2)
    named = [
        *(experiment.code, experiment.submit_lock),
        *(submission.plan, submission.submission, submission.package, submission.script(0)),
        *(submission.journal, submission.local_log(), submission.local_log(4)),
        *(submission.batch_log("12"), submission.batch_log("12_3")),
        *(run.intent, run.ledger, run.checkpoint(100, 2)),
        *(run.tracking, run.tracker_state("wandb"), run.work, run.rank_work(7), attempt.kept),
        *(attempt.launch, attempt.deepspeed, attempt.metrics, attempt.session),
        *(attempt.rank_log(7), attempt.agent_log("n1"), attempt.exit_record(7)),
        *(attempt.telemetry("n1"), attempt.tracker_log("wandb")),
        *layout.extension_caches(submission),
    ]
    assert [str(path.relative_to(tmp_path)) for path in named] == [
        "study/code",
        "study/submit.lock",
        "study/submissions/1/plan.json",
        "study/submissions/1/submission.json",
        "study/submissions/1/hpcrun.zip",
        "study/submissions/1/script-0.sbatch",
        "study/submissions/1/journal.jsonl",
        "study/submissions/1/local.log",
        "study/submissions/1/local-4.log",
        "study/submissions/1/slurm-12.log",
        "study/submissions/1/slurm-12_3.log",
        "study/runs/3/intent.json",
        "study/runs/3/ledger.jsonl",
        "study/runs/3/checkpoints/step-00000100-a2",
        "study/runs/3/tracking",
        "study/runs/3/tracking/wandb.json",
        "study/runs/3/work",
        "study/runs/3/work/rank-00007",
        "study/runs/3/attempts/2/kept",
        "study/runs/3/attempts/2/launch.json",
        "study/runs/3/attempts/2/deepspeed.json",
        "study/runs/3/attempts/2/metrics.jsonl",
        "study/runs/3/attempts/2/session.jsonl",
        "study/runs/3/attempts/2/rank-00007.log",
        "study/runs/3/attempts/2/agent-n1.log",
        "study/runs/3/attempts/2/exit-00007.json",
        "study/runs/3/attempts/2/telemetry-n1.jsonl",
        "study/runs/3/attempts/2/tracker-wandb.log",
        ".hpcrun/torch_extensions",
        "study/.hpcrun/torch_extensions",
    ]


def test_from_a_submission_to_its_experiment_and_numbers(tmp_path: Path) -> None:
    experiment = layout.experiment(tmp_path, "study")
    assert experiment.name == "study"
    assert experiment.submission(12).experiment == experiment
    assert experiment.submission(12).number == 12
    assert experiment.run(3).number == 3
    assert experiment.run(3).attempt(4).number == 4


def test_slurms_patterns_give_the_same_names(tmp_path: Path) -> None:
    submission = layout.experiment(tmp_path, "study").submission(1)
    single = submission.batch_log_pattern(array=False).replace("%j", "12")
    element = submission.batch_log_pattern(array=True).replace("%A", "12").replace("%a", "3")
    assert Path(single) == submission.batch_log("12")
    assert Path(element) == submission.batch_log("12_3")
    attempt = layout.experiment(tmp_path, "study").run(1).attempt(1)
    assert Path(attempt.rank_log_pattern.replace("%5t", "00042")) == attempt.rank_log(42)


def test_listings_are_in_the_order_of_numbers(tmp_path: Path) -> None:
    experiment = layout.experiment(tmp_path, "study")
    run = experiment.run(1)
    assert (experiment.submissions(), run.attempts()) == ([], [])
    for number in (10, 9, 1):
        experiment.submission(number).directory.mkdir(parents=True)
        run.attempt(number).directory.mkdir(parents=True)
    (run.directory / "attempts" / ".tmp").mkdir()
    assert [each.number for each in experiment.submissions()] == [1, 9, 10]
    assert [each.number for each in run.attempts()] == [1, 9, 10]


def test_logs_and_records_of_ranks(tmp_path: Path) -> None:
    attempt = layout.AttemptPaths(tmp_path)
    for rank in (100000, 2, 11):
        attempt.rank_log(rank).touch()
        attempt.exit_record(rank).touch()
    attempt.agent_log("rank-1").touch()
    assert set(attempt.rank_logs()) == {2, 11, 100000}
    assert attempt.rank_logs()[11] == attempt.rank_log(11)
    assert len(attempt.exit_records()) == 3


def test_experiments_are_directories_with_submissions(tmp_path: Path) -> None:
    assert layout.experiments(tmp_path / "none") == []
    for name in ("b", "a"):
        layout.experiment(tmp_path, name).submission(1).directory.mkdir(parents=True)
    (tmp_path / "notes").mkdir()
    (tmp_path / "file").touch()
    assert [each.name for each in layout.experiments(tmp_path)] == ["a", "b"]


def test_the_experiment_and_run_that_a_path_names_or_lies_in(tmp_path: Path) -> None:
    study = layout.experiment(tmp_path, "study")
    study.submission(1).directory.mkdir(parents=True)
    attempt = study.run(3).attempt(1).directory
    for path, number in ((study.directory, None), (attempt, 3), (study.code, None)):
        assert layout.enclosing(path) == (study, number)
    assert layout.enclosing(tmp_path) is None
    for name, number in (("study", None), ("study/3", 3), ("study/runs/3", 3)):
        assert layout.named_run(tmp_path / name) == (study, number)
    layout.experiment(tmp_path, "7").submission(1).directory.mkdir(parents=True)
    assert layout.named_run(tmp_path / "7") == (layout.experiment(tmp_path, "7"), None)


def test_frozen_code_is_what_a_file_can_be_called(tmp_path: Path) -> None:
    paths = layout.experiment(tmp_path, "e")
    assert paths.frozen_code({"archive": "abc.tar.gz"}) == paths.code / "abc.tar.gz"


@pytest.mark.parametrize(
    "archive",
    [
        *("a" * 300 + ".tar.gz", "../x.tar.gz", "a\0.tar.gz", "\ud800.tar.gz", "-x.tar.gz"),
        *("..tar.gz", "a.zip", "", None, 5, ["a.tar.gz"]),
    ],
    ids=lambda archive: repr(archive)[:20],
)
def test_no_frozen_code(tmp_path: Path, archive: object) -> None:
    assert layout.experiment(tmp_path, "e").frozen_code({"archive": archive}) is None

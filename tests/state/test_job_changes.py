"""What may be changed of a queued job, and what a spec is with it."""

import pytest

from hpcrun.state import job_changes
from hpcrun.state.job_changes import KEYS, JobChange

SPEC = {"config": {"x": 1}, "resources": {"time": "1:00:00", "sbatch": {"comment": "a"}}}


@pytest.mark.parametrize(
    ("name", "taken", "refused"),
    [
        (
            "time",
            ("90", "04:00:00", "2-12", "2-00:00:00"),
            ("", "0", "00:00:00", "4h", "-5", "1 2"),
        ),
        ("partition", ("gpu", "gpu,cpu_2"), ("", "a b", "a=b", "-x", "gpu;")),
        ("qos", ("low",), ("", "low high")),
        ("nice", ("100", "-5"), ("", "x", "99999999999")),
        ("priority", ("1",), ("0", "-1", "4294967295")),
        ("max_parallel", ("8", "none"), ("0", "null", "-1")),
    ],
)
def test_values(name: str, taken: tuple[str, ...], refused: tuple[str, ...]) -> None:
    assert [text for text in taken if not KEYS[name].takes(text)] == []
    assert [text for text in refused if KEYS[name].takes(text)] == []


def test_a_spec_is_patched_and_not_changed() -> None:
    changes = {"time": JobChange("5", 1.0), "nice": JobChange("7", 1.0)}
    found = job_changes.apply(SPEC, {**changes, "priority": JobChange("3", 1.0)})
    assert found["resources"] == {"time": "5", "sbatch": {"comment": "a", "nice": "7"}}
    assert SPEC["resources"] == {"time": "1:00:00", "sbatch": {"comment": "a"}}
    assert job_changes.apply(SPEC, {}) is SPEC


def test_the_newest_limit_of_an_array_counts() -> None:
    old, new = {"max_parallel": JobChange("2", 1.0)}, {"max_parallel": JobChange("none", 2.0)}
    assert job_changes.max_parallel([{}, {}], 4) == 4
    assert job_changes.max_parallel([old], 4) == 2
    assert job_changes.max_parallel([new, old], 4) is None


def test_what_a_journal_holds_of_others_is_passed_over() -> None:
    line = {"time": 5.0, "changes": {"time": "90", "qos": "a b", "nodes": "4", "nice": 3}}
    assert job_changes.from_record(line) == {"time": JobChange("90", 5.0)}
    assert job_changes.in_words(job_changes.from_record(line)) == "time 90"

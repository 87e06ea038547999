"""What the job lacks of the place where it was submitted: by what programs say of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpcrun.observe.diagnosis import left_behind
from hpcrun.state.plan import Plan
from tests.support.plans import command_plan

WORK = Path("/root/experiment/runs/0/work")
COPY = "/tmp/hpcrun-0123456789ab/attempt-1/code"
SHELL = ["DATA_DIR", "HOME", "HF_TOKEN", "PATH"]
FRAME = '  File "<frozen os>", line 679, in __getitem__'
SET = "DATA_DIR was set in the shell that submitted"
LINE = "`environment: {variables: {DATA_DIR: '${oc.env:DATA_DIR}'}}`"


def explain(
    code: Path, cause: dict[str, Any], facts: dict[str, Any] | None = None, **spec: Any
) -> str | None:
    plan = command_plan(code, {0: ["a"]}, **spec)
    known = {"variables": SHELL, "code": {"left_out": ["data", "sub/x.bin"]}}
    return left_behind.explanation(cause, known if facts is None else facts, plan, WORK)


@pytest.mark.parametrize(
    "lines",
    [
        [FRAME, "KeyError: 'DATA_DIR'"],
        ["KeyError: 'DATA_DIR'"],
        ["run.sh: line 4: DATA_DIR: unbound variable"],
        ["run.sh: 4: DATA_DIR: parameter not set"],
        ["run.sh: line 4: DATA_DIR: parameter null or not set"],
        ["run.sh: line 4: DATA_DIR: where are the data?"],
        ["DATA_DIR: Undefined variable."],
        ["omegaconf.errors.InterpolationError: Environment variable 'DATA_DIR' not found"],
        ["error: please set DATA_DIR"],
    ],
)
def test_a_variable_that_the_shell_had(tmp_path: Path, lines: list[str]) -> None:
    told = str(explain(tmp_path, {"log_tail": lines}))
    assert SET in told
    assert LINE in told


def test_a_variable_of_an_exception(tmp_path: Path) -> None:
    cause = {"exception": "KeyError", "message": "'DATA_DIR'", "log_tail": []}
    assert LINE in str(explain(tmp_path, cause))
    cause = {"exception": "ValueError", "message": "DATA_DIR must be set", "log_tail": []}
    assert LINE in str(explain(tmp_path, cause))


def test_a_variable_that_nobody_had(tmp_path: Path) -> None:
    told = str(explain(tmp_path, {"log_tail": [FRAME, "KeyError: 'OTHER'"]}))
    assert "nor had the shell that submitted it" in told
    assert "variables: {OTHER: …}" in told


def test_a_submission_that_recorded_no_names(tmp_path: Path) -> None:
    told = str(explain(tmp_path, {"log_tail": [FRAME, "KeyError: 'DATA_DIR'"]}, {}))
    assert "it does not get those of the shell" in told


def test_a_secret_goes_into_a_file(tmp_path: Path) -> None:
    told = str(explain(tmp_path, {"log_tail": [FRAME, "KeyError: 'HF_TOKEN'"]}))
    assert "environment.secrets_file" in told
    assert "oc.env" not in told


@pytest.mark.parametrize(
    "cause",
    [
        {"exception": "KeyError", "message": "'other_key'", "log_tail": ["KeyError: 'other_key'"]},
        {"exception": "ValueError", "message": "batch 3", "log_tail": ["PATH not set", *"abcdefg"]},
        {"log_tail": ["HOME is /home/a"]},
        {"log_tail": []},
        {},
    ],
)
def test_what_has_to_do_with_no_variable(tmp_path: Path, cause: dict[str, Any]) -> None:
    assert explain(tmp_path, cause) is None


def test_a_variable_that_the_spec_gives(tmp_path: Path) -> None:
    cause = {"log_tail": ["error: please set DATA_DIR to a directory"]}
    given = {"environment": {"variables": {"DATA_DIR": "x"}}}
    assert explain(tmp_path, cause, **given) is None


@pytest.mark.parametrize(
    ("exception", "message", "lines"),
    [
        ("FileNotFoundError", "[Errno 2] No such file or directory: 'data/x.csv'", []),
        ("FileNotFoundError", "[Errno 2] No such file or directory: './data/x.csv'", []),
        ("FileNotFoundError", f"[Errno 2] No such file or directory: '{COPY}/data/x.csv'", []),
        ("FileNotFoundError", f"[Errno 2] No such file or directory: '{WORK}/data/x.csv'", []),
        ("FileNotFoundError", f"Unable to find '{WORK}/rank-00001/data/x.csv'", []),
        ("OSError", "data/x.csv is not a local folder and is not a valid model", []),
        ("HFValidationError", "Incorrect path_or_model_id: 'data/x.csv'.", []),
        (None, None, ["cat: data/x.csv: No such file or directory"]),
        (None, None, ["terminate: cannot open data/x.csv", "Aborted"]),
        (None, None, ["python: can't open file 'data/x.csv': [Errno 2]"]),
    ],
)
def test_a_file_that_was_left_out(
    tmp_path: Path, exception: str | None, message: str | None, lines: list[str]
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "x.csv").touch()
    told = explain(tmp_path, {"exception": exception, "message": message, "log_tail": lines})
    assert told == (
        f"data/x.csv is in {tmp_path} and is not in the frozen code: write `code: {{include: "
        "[data/x.csv]}` in the spec"
    )


def test_a_directory_of_which_all_was_left_out(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "x.bin").touch()
    cause = {"exception": "FileNotFoundError", "message": "No such file or directory: 'sub'"}
    assert "code: {link: [sub]}" in str(explain(tmp_path, cause))


def test_a_file_that_is_gone_here_too(tmp_path: Path) -> None:
    cause = {"exception": "FileNotFoundError", "message": "No such file or directory: 'data/x'"}
    told = str(explain(tmp_path, cause))
    assert f"data was in {tmp_path}" in told
    assert "code.link" in told


def test_a_file_outside_the_code(tmp_path: Path) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (tmp_path / "x.csv").touch()
    cause = {"exception": "FileNotFoundError", "message": "No such file or directory: '../x.csv'"}
    told = str(explain(code, cause))
    assert f"name {tmp_path / 'x.csv'}" in told
    (tmp_path / "x.csv").unlink()
    assert explain(code, cause) is None


def test_a_file_beside_a_spec_that_is_not_in_the_code(tmp_path: Path) -> None:
    for name in ("code", "specs"):
        (tmp_path / name).mkdir()
    (tmp_path / "specs" / "my.yaml").touch()
    made = command_plan(tmp_path / "code", {0: ["a"]})
    plan = Plan(**{**vars(made), "spec_file": str(tmp_path / "specs" / "spec.yaml")})
    cause = {"exception": "FileNotFoundError", "message": "No such file or directory: 'my.yaml'"}
    told = str(left_behind.explanation(cause, {}, plan, WORK))
    assert "lies beside the spec" in told
    assert str(tmp_path / "specs" / "my.yaml") in told


@pytest.mark.parametrize(
    ("exception", "message"),
    [
        ("FileNotFoundError", "No such file or directory: 'other.csv'"),
        ("FileNotFoundError", "No such file or directory: '/etc/none'"),
        ("FileNotFoundError", "No such file or directory: 'database/x.csv'"),
        ("ValueError", "no row found in the data"),
        ("ValueError", "data/x.csv has a bad line"),
    ],
)
def test_what_was_not_left_out(tmp_path: Path, exception: str, message: str) -> None:
    assert explain(tmp_path, {"exception": exception, "message": message}) is None

"""What a person or a colleague writes is told to be too much, with its place, before it costs much.

Each attack has a process of its own, and may cost 5 seconds of a processor and 500 MB of memory.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import omegaconf
import pytest

from hpcrun.compile.source.interpolate import interpolate
from hpcrun.compile.source.marked_tree import Tree
from hpcrun.compile.source.problems import Problems
from tests.support.command import argv

SECONDS, MEGABYTES = 5.0, 500
# What ends an attack that nothing else ends.
GIVE_UP, PROCESSOR, ADDRESS_SPACE = 60, 15, 3 << 30
HEAD = "name: demo\nentry: train.py\ncluster: local\n"


@dataclass(frozen=True)
class Told:
    """The end of a command, and its cost."""

    code: int
    out: str
    err: str
    seconds: float
    megabytes: float


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory with a program."""
    (tmp_path / "train.py").write_text("print(1)\n")
    return tmp_path


# Runs a command within limits and writes what it took: its code, seconds of a processor, MB.
# A small process of its own, because a child's most memory starts at what its parent ever had.
METER = f"""
import json, os, resource, subprocess, sys
def limited():
    resource.setrlimit(resource.RLIMIT_AS, ({ADDRESS_SPACE}, {ADDRESS_SPACE}))
    resource.setrlimit(resource.RLIMIT_CPU, ({PROCESSOR}, {PROCESSOR}))
process = subprocess.Popen(sys.argv[2:], preexec_fn=limited)
_, status, used = os.wait4(process.pid, 0)
took = os.waitstatus_to_exitcode(status), used.ru_utime + used.ru_stime, used.ru_maxrss / 1024
with open(sys.argv[1], "w") as file:
    json.dump(took, file)
"""


def run(place: Path, *arguments: str, within: float = SECONDS) -> Told:
    """Run a command; what it took of a processor and of memory is within the limits."""
    with open(place / "out", "w+") as out, open(place / "err", "w+") as err:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", METER, place / "took", *argv(*arguments)],
            cwd=place,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            env={**os.environ, "HOME": str(place / "home"), "HPCRUN_ROOT": str(place / "root")},
            start_new_session=True,
        )
        try:
            process.wait(GIVE_UP)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    code, seconds, megabytes = json.loads((place / "took").read_text())
    told = Told(
        code,
        (place / "out").read_text(errors="replace"),
        (place / "err").read_text(errors="replace"),
        seconds,
        megabytes,
    )
    assert "Traceback" not in told.err, told.err[-2000:]
    assert told.code in (0, 2), (told.code, told.err[-2000:])
    assert seconds < within
    assert megabytes < MEGABYTES
    assert len(told.err) < 300_000
    return told


def plan(place: Path, text: str, *more: str) -> Told:
    """Plan a spec of that text below its head of three lines."""
    (place / "spec.yaml").write_text(HEAD + text)
    return run(place, "plan", "spec.yaml", *more)


def refused(told: Told, *words: str) -> None:
    assert told.code == 2
    for word in words:
        assert word in told.err, told.err[-3000:]


def laughs(levels: int, width: int, first: str, each: str) -> Iterator[str]:
    """Yield lines of which each holds the one before many times over."""
    yield f"  a0: {first}"
    for level in range(1, levels):
        yield f"  a{level}: " + each.format(", ".join([f"*a{level - 1}"] * width)).replace(
            "[", f"&a{level} [", 1
        )


def test_aliases_that_stand_for_billions_of_values_are_counted_not_written_out(
    place: Path,
) -> None:
    lines = "\n".join(laughs(30, 9, "&a0 [lol, lol]", "[{}]"))
    told = plan(place, f"config:\n{lines}\n")
    refused(told, "spec.yaml:10:", "more than 100,000 keys and values", "aliases counted")


def test_aliases_of_one_long_text_are_counted_by_their_text(place: Path) -> None:
    long = f"  a0: &a0 {'x' * 1_000_000}\n"
    told = plan(place, f"config:\n{long}  all: [{', '.join(['*a0'] * 50_000)}]\n")
    refused(told, "spec.yaml:6:", "16.0 MB of text")


def test_merge_keys_that_double_are_counted_too(place: Path) -> None:
    lines = ["  a0: &a0 {x: 1}"]
    lines += [f"  a{n}: &a{n} {{k{n}: *a{n - 1}, <<: *a{n - 1}}}" for n in range(1, 40)]
    told = plan(place, "config:\n" + "\n".join(lines) + "\n")
    refused(told, "spec.yaml:", "keys and values")


def test_interpolations_that_double_are_counted_not_followed(place: Path) -> None:
    text = "".join(f"  a{n}: ${{config.a{n - 1}}}${{config.a{n - 1}}}\n" for n in range(1, 40))
    told = plan(place, f"config:\n  a0: lol\n{text}")
    refused(told, "spec.yaml:", "config.a", "too many times over")


def test_interpolations_that_double_mappings_are_counted_not_copied(place: Path) -> None:
    text = "".join(
        f"  a{n}: {{x: '${{config.a{n - 1}}}', y: '${{config.a{n - 1}}}'}}\n" for n in range(1, 40)
    )
    told = plan(place, f"config:\n  a0: {{x: 1}}\n{text}")
    refused(told, "spec.yaml:", "config.a", "too many times over")


def test_interpolations_that_repeat_a_long_text_are_counted_by_it(place: Path) -> None:
    text = "".join(f"  a{n}: ${{config.a{n - 1}}}${{config.a{n - 1}}}\n" for n in range(1, 12))
    told = plan(place, f"config:\n  a0: {'x' * 5_000_000}\n{text}")
    refused(told, "spec.yaml:", "too many times over")


@pytest.mark.parametrize("levels", [80, 50_000])
@pytest.mark.parametrize(("opening", "closing"), [("{a: ", "}"), ("[", "]")])
def test_depth_is_told_before_anything_recurses(
    place: Path, levels: int, opening: str, closing: str
) -> None:
    told = plan(place, f"config:\n  deep: {opening * levels}1{closing * levels}\n")
    refused(told, "spec.yaml:5: mappings and lists are nested more than 24 levels deep")


def test_depth_in_a_deepspeed_file_is_told_with_its_line(place: Path) -> None:
    (place / "ds.json").write_text('{"train_batch_size": 1,\n"x": ' + "[" * 60_000)
    refused(plan(place, "deepspeed_config: ds.json\n"), "ds.json:2:", "levels deep")


@pytest.mark.parametrize(
    "number",
    ["9" * 100_000, "0x" + "f" * 100_000, "0" + "7" * 100_000, "1:" * 30_000 + "1", "1e999999"],
    ids=["decimal", "hexadecimal", "octal", "base 60", "float"],
)
def test_a_number_beyond_all_use_is_told_and_not_computed(place: Path, number: str) -> None:
    refused(plan(place, f"config:\n  n: {number}\n"), "spec.yaml:5:", "too large")
    refused(plan(place, "config: {n: 1}\n", f"config.n={number}"), "command line:", "config.n") if (
        number.isalnum()
    ) else None


def test_a_number_beyond_all_use_in_json_is_told_with_its_line(place: Path) -> None:
    (place / "ds.json").write_text('{"train_batch_size": 1,\n"x": ' + "9" * 100_000 + "}")
    refused(plan(place, "deepspeed_config: ds.json\n"), "ds.json:2:", "too large")


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("resources: {nodes: 1000000000}", "resources.nodes"),
        ("resources: {nodes: 1000000, ntasks_per_node: 10000}", "resources.nodes"),
        ("resources: {cpus_per_task: 123456789}", "resources.cpus_per_task"),
        ('resources: {time: "999999999-00"}', "resources.time"),
        ("recovery: {max_failures: 99999999999999}", "recovery.max_failures"),
        ("telemetry: {every: 99999999999999}", "telemetry.every"),
        ('recovery: {hang_after: "999999999-00"}', "recovery.hang_after"),
        ("sweep: {max_parallel: 99999999999999, grid: {config.n: [1]}}", "sweep.max_parallel"),
        ("deepspeed: {train_batch_size: 99999999999999999999}", "deepspeed.train_batch_size"),
    ],
)
def test_a_number_that_no_cluster_has_is_told(place: Path, text: str, key: str) -> None:
    refused(plan(place, f"config: {{n: 1}}\n{text}\n"), f"spec.yaml:5: {key}:", "accepted")


def test_twenty_thousand_unknown_keys_are_told_as_the_first_hundred(place: Path) -> None:
    told = plan(place, "".join(f"resuorces_{n}: {n}\n" for n in range(20_000)))
    refused(told, "spec.yaml:4: resuorces_0: unknown key", "100 problems; there may be more")
    assert len(told.err.splitlines()) < 120


def test_twenty_thousand_keys_given_twice_are_told_as_the_first_hundred(place: Path) -> None:
    keys = ", ".join(f'"k{n}": 1' for n in range(20_000))
    (place / "ds.json").write_text(f"{{{keys}, {keys}}}")
    refused(plan(place, "deepspeed_config: ds.json\n"), "given twice", "100 problems")


def test_an_unknown_key_of_a_megabyte_is_told_by_its_ends(place: Path) -> None:
    told = plan(place, f"? {'k' * 100_000}\n: 1\n")
    refused(told, "spec.yaml:4:", "characters more")
    assert len(told.err) < 10_000


@pytest.mark.parametrize(
    "text",
    [
        "sweep: {union: [" + ", ".join(["{grid: {config.n: {range: [100000]}}}"] * 300) + "]}",
        "sweep: {grid: {config.n: {range: [2000]}}, exclude: ["
        + ", ".join(["{config.n: [" + ", ".join(map(str, range(300))) + "]}"] * 200)
        + "]}",
        "sweep: {grid: {" + ", ".join(f"config.c.k{n}: [1]" for n in range(5_000)) + "}}",
    ],
    ids=["union", "rules", "keys"],
)
def test_a_sweep_of_a_billion_points_is_told(place: Path, text: str) -> None:
    keys = ", ".join(f"k{n}: 0" for n in range(5_000))
    told = plan(place, f"config: {{n: 1, m: 1, c: {{{keys}}}}}\n{text}\n")
    refused(told, "spec.yaml:5: sweep")


def test_a_swept_value_of_a_megabyte_is_no_name_for_a_run(place: Path) -> None:
    text = f"sweep: {{grid: {{config.n: {{range: [50000]}}, config.m: [{'x' * 1_000_000}]}}}}"
    told = plan(place, f"config: {{n: 1, m: 1}}\n{text}\n")
    refused(told, "spec.yaml:5:", "characters", "choices: {label: value}")


def test_a_sweep_whose_runs_hold_gigabytes_is_told(place: Path) -> None:
    (place / "train.py").write_text("def main(session):\n    pass\n")
    config = f"config: {{n: 1, text: {'x' * 1_000_000}}}"
    told = plan(
        place, f"{config}\nsweep: {{grid: {{config.n: {{range: [50000]}}}}}}\n", "entry=train:main"
    )
    refused(told, "500 MB of configuration in all")


def test_files_that_extend_each_other_ten_thousand_deep_are_told(place: Path) -> None:
    for number in range(60):
        (place / f"e{number}.yaml").write_text(f"extends: e{number + 1}.yaml\n")
    refused(plan(place, "extends: e0.yaml\n"), "e23.yaml:1:", "more than 24 deep")


def test_files_that_extend_two_that_extend_two_are_told(place: Path) -> None:
    for number in range(20):
        (place / f"e{number}.yaml").write_text(
            f"extends: [e{number + 1}.yaml, e{number + 1}.yaml]\n"
        )
    (place / "e20.yaml").write_text("config: {n: 1}\n")
    refused(plan(place, "extends: e0.yaml\n"), "made of more than 1,000 files")


def test_experiments_that_depend_on_ten_thousand_others_are_told(place: Path) -> None:
    for number in range(60):
        (place / f"d{number}.yaml").write_text(
            f"name: d{number}\nentry: train.py\ncluster: local\ndepends_on: d{number + 1}.yaml\n"
        )
    refused(plan(place, "depends_on: d0.yaml\n"), "more than 50 experiments")


@pytest.mark.parametrize(
    ("as_what", "what"),
    [("base", "sparse"), ("profile", "sparse"), ("profile", "fifo"), ("deepspeed", "sparse")],
)
def test_a_file_that_is_none_or_has_no_end_is_not_read(
    place: Path, what: str, as_what: str
) -> None:
    names = {"base": "base.yaml", "profile": "configs/clusters/bad.yaml", "deepspeed": "ds.json"}
    path = place / names[as_what]
    path.parent.mkdir(parents=True, exist_ok=True)
    if what == "fifo":
        os.mkfifo(path)
    else:
        with open(path, "wb") as stream:
            stream.truncate(30 << 30)
    text = {
        "base": "extends: base.yaml\n",
        "profile": "",
        "deepspeed": "deepspeed_config: ds.json\n",
    }[as_what]
    told = plan(place, text, *(["cluster=bad"] if as_what == "profile" else []))
    refused(told, path.name)
    assert what == "fifo" or "at most 8.0 MB" in told.err


def test_an_argument_that_no_program_can_be_started_with_is_told_at_plan(place: Path) -> None:
    long = "x" * 200_000
    refused(plan(place, f"args: [{long}]\n"), "spec.yaml:4: args:", "200,000 bytes", "120,000")
    refused(plan(place, f"config: {{a: {long}}}\n"), "spec.yaml:4: config:", "120,000")
    refused(plan(place, f"environment: {{variables: {{A: {long}}}}}\n"), "variables:", "120,000")


@pytest.mark.parametrize(
    "override",
    [
        "config." + "a." * 20_000 + "b=1",
        "config.n=" + "[" * 50_000,
        "config.n=" + "9" * 100_000,
        "resources.nodes=²",
        "k" * 100_000,
    ],
    ids=["deep key", "deep value", "number", "digit", "word"],
)
def test_a_bomb_on_the_command_line_is_told(place: Path, override: str) -> None:
    told = plan(place, "config: {n: 1}\n", override)
    refused(told, "command line")
    assert len(told.err) < 10_000


def test_conditions_and_expressions_end_in_words(place: Path) -> None:
    (place / "spec.yaml").write_text(HEAD + "config: {n: [1], m: 1}\n")
    assert run(place, "run", "spec.yaml").code == 0
    deep = run(place, "status", "demo", "--where", "n=" + "[" * 50_000)
    refused(deep, "no run has config.n=")
    refused(run(place, "status", "demo", "--where", "k" * 100_000 + "=1"), "no swept")
    assert run(place, "logs", "demo", "--rank", "0-9999999999").code in (0, 2)
    refused(run(place, "logs", "demo", "--grep", "(" * 50_000), "--grep", "regular expression")
    (log,) = place.glob("root/demo/runs/0/attempts/1/*rank*")
    with open(log, "a") as stream:
        stream.write("a" * 60 + "!\n")
    endless = run(place, "logs", "demo", "--grep", "(a+)+$")
    refused(endless, "takes more than", "(a+)+")


def test_omegaconf_follows_references_where_they_are_counted() -> None:
    cause = (
        f"OmegaConf {omegaconf.__version__} does not follow references through the private method "
        "Container._select_impl: count them where it does now, in interpolate._metered"
    )
    assert hasattr(omegaconf.Container, "_select_impl"), cause
    problems = Problems()
    assert interpolate(Tree({"a": 1, "b": "${a}"}), problems) == {"a": 1, "b": 1}
    assert problems.extent.copied, cause


@pytest.mark.parametrize(
    "line",
    [
        "x = " + "-" * 100_000 + "1",
        "x = a" + ".a" * 90_000,
        "if a: pass\n" + "elif a: pass\n" * 10_000,
    ],
    ids=["signs", "attributes", "branches"],
)
def test_a_program_that_is_nested_too_deeply_is_told(place: Path, line: str) -> None:
    (place / "train.py").write_text(f"def main(session): pass\n{line}\n")
    (place / "spec.yaml").write_text(HEAD.replace("train.py", "train:main"))
    told = run(place, "plan", "spec.yaml")
    refused(told, "spec.yaml:2: entry:", "train.py is nested too deeply")


@pytest.mark.parametrize("text", ["x = f'" + "{a}" * 400_000 + "'", "a;" * 2_000_000])
def test_a_large_program_is_searched_and_not_parsed(place: Path, text: str) -> None:
    (place / "train.py").write_text(f"def main(session): pass\n{text}\n")
    for function, code in (("main", 0), ("none", 2)):
        (place / "spec.yaml").write_text(HEAD.replace("train.py", f"train:{function}"))
        told = run(place, "plan", "spec.yaml")
        assert told.code == code, told.err
    assert "train.py has no 'none'" in told.err


@pytest.mark.parametrize(
    ("entry", "words"),
    [("a" * 300 + ":main", "there is no module"), ("a/" * 3000 + "b.py", "there is no file")],
)
def test_an_entry_of_a_name_that_no_file_can_have_is_told(
    place: Path, entry: str, words: str
) -> None:
    (place / "spec.yaml").write_text(HEAD.replace("train.py", f"'{entry}'"))
    refused(run(place, "plan", "spec.yaml"), "spec.yaml:2: entry:", words)


def test_a_huge_program_is_not_read(place: Path) -> None:
    with (place / "train.py").open("r+b") as stream:
        stream.truncate(30_000_000_000)
    (place / "spec.yaml").write_text(HEAD.replace("train.py", "train:main"))
    refused(run(place, "plan", "spec.yaml"), "entry:", "train.py cannot be read", "at most 8.0 MB")


def test_what_people_write_is_within_the_limits(place: Path) -> None:
    keys = "".join(f"  k{n}: {{a: [1, 2], b: text, c: '${{config.n}}'}}\n" for n in range(200))
    anchors = "base: &base {x: 1, y: [1, 2]}, more: [*base, *base], seed: 0x" + "f" * 32
    text = f"config:\n  n: 1\n{keys}  own: {{{anchors}}}\n"
    (place / "spec.yaml").write_text(
        "name: demo\nentry: 'train:main'\ncluster: local\n"
        + text
        + "sweep: {grid: {config.n: {range: [20]}}, repeat: {config.k0.b: 5}}\n"
    )
    (place / "train.py").write_text("def main(session):\n    pass\n")
    told = run(place, "plan", "spec.yaml", "--json", within=20)
    runs = json.loads(told.out)["runs"]
    assert len(runs) == 100
    assert runs[99]["spec"]["config"]["own"]["seed"] == 2**128 - 1

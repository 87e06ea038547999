"""Arguments of scripts and commands: the order, the styles of flags, and those of a resume."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from hpcrun.compile import compile_spec
from hpcrun.errors import SpecError

BASE = "cluster: local\nenvironment: {python: /opt/bin/python}\n"


def compiled(project: Any, text: str, *overrides: str, sweeps: tuple[str, ...] = ()) -> Any:
    return compile_spec(project.write("spec.yaml", BASE + text), overrides, sweeps)


def argv(project: Any, text: str, *overrides: str) -> list[str]:
    return list(compiled(project, text, *overrides).runs[0].entry.argv)


def resumed(project: Any, text: str, *overrides: str) -> list[str] | None:
    found = compiled(project, text, *overrides).runs[0].entry.resumed
    return None if found is None else list(found)


def wrong(project: Any, text: str) -> str:
    with pytest.raises(SpecError) as caught:
        compiled(project, text)
    return str(caught.value)


CONFIG = "config: {lr: 2.0e-5, fast: true, slow: false, off_: null, at: [1, x], m: {d: {e: 1}}}\n"
FLAT = CONFIG.replace(", m: {d: {e: 1}}", "")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (FLAT, ["--lr=2e-05", "--fast", "--at=1,x"]),
        (FLAT + 'flags: "--key value"\n', ["--lr", "2e-05", "--fast", "--at", "1", "x"]),
        (
            CONFIG + "flags: key=value\n",
            ["lr=2e-05", "fast=true", "slow=false", "off_=null", "at=[1,x]", "m.d.e=1"],
        ),
        (CONFIG + "flags: none\n", []),
    ],
)
@pytest.mark.parametrize("entry", ["train.py", "[bash, train.sh]"])
def test_styles_of_flags(project: Any, entry: str, text: str, expected: list[str]) -> None:
    command = ["bash", "train.sh"] if entry.startswith("[") else []
    found = argv(project, f"entry: {entry}\nargs: [run, --file, own.yaml]\n{text}")
    assert found == [*command, "run", "--file", "own.yaml", *expected]


@pytest.mark.parametrize(
    ("value", "flag"),
    [
        ("a b", 'k="a b"'),
        ("x=1", 'k="x=1"'),
        ('say "hi"', 'k="say \\"hi\\""'),
        ("back\\", 'k="back\\\\"'),
        ("a/b-c.d:e", "k=a/b-c.d:e"),
        ("${hpcrun:directory}/o", 'k="${hpcrun:directory}/o"'),
        ("", 'k=""'),
        ("größe", 'k="größe"'),
        ("true", 'k="true"'),
        ("Null", 'k="Null"'),
        ("10", 'k="10"'),
        ("-1.5e-3", 'k="-1.5e-3"'),
        ("7b-chat", "k=7b-chat"),
        ([1, "1"], 'k=[1,"1"]'),
        ({}, "k={}"),
    ],
)
def test_hydra_gets_what_it_would_misread_in_quotes(project: Any, value: Any, flag: str) -> None:
    text = f"entry: train.py\nflags: key=value\nconfig: {json.dumps({'k': value})}\n"
    assert argv(project, text) == [flag]


def test_flags_of_a_script_come_before_a_double_dash(project: Any) -> None:
    text = "entry: train.py\nargs: [a, --, b]\nconfig: {x: 1}\nrecovery: {resume_args: [-r]}\n"
    assert argv(project, text) == ["a", "--x=1", "--", "b"]
    assert resumed(project, text) == ["a", "--x=1", "-r", "--", "b"]
    text = text.replace("train.py", "[torchrun]")
    assert argv(project, text) == ["torchrun", "a", "--", "b", "--x=1"]


REFERRED = """\
cluster: local
entry: [bash, train.sh, "${config.size}"]
args: ["--lr=${config.lr}", "--n=${config.m.n}", "${oc.decode:${config.d}}"]
environment: {python: /opt/bin/python, variables: {SEED: "${config.seed}"}}
config: {size: 4, lr: 1, seed: 0, d: "2", batch: 8, m: {n: 3}}
deepspeed: {train_batch_size: "${config.batch}"}
"""


def test_what_a_command_refers_to_is_no_flag(project: Any) -> None:
    found = compile_spec(project.write("spec.yaml", REFERRED))
    own = ("bash", "train.sh", "4", "--lr=1", "--n=3", "2")
    assert found.runs[0].entry.argv == (*own, "--batch=8")
    assert found.no_flags == ("config.d", "config.lr", "config.m.n", "config.seed", "config.size")
    # A script has always had all of them.
    script = REFERRED.replace('[bash, train.sh, "${config.size}"]', "train.py")
    script = script.replace("m: {n: 3}", "n: 3").replace("config.m.n", "config.n")
    entry = compile_spec(project.write("script.yaml", script)).runs[0].entry
    assert entry.argv[-6:] == ("--size=4", "--lr=1", "--seed=0", "--d=2", "--batch=8", "--n=3")


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ('exec python train.py "$@"', ["sh", "--lr=1"]),
        ("echo $1", ["sh", "--lr=1"]),
        # Nothing would read them.
        ("echo $RANK", []),
    ],
)
def test_the_script_of_a_shell_gets_its_arguments(
    project: Any, script: str, words: list[str]
) -> None:
    text = f"entry: [sh, -c, {json.dumps(script)}]\nconfig: {{lr: 1}}\n"
    notes = "".join(compiled(project, text).notes)
    assert ('config.lr is no flag, as the script of `sh -c` has no "$@"' in notes) == (not words)
    assert compiled(project, text + "flags: none\n").notes == ()
    assert argv(project, text) == ["sh", "-c", script, *words]
    more = resumed(project, text + "recovery: {resume_args: [-r]}\n")
    assert more == ["sh", "-c", script, *words, "-r"]
    assert argv(project, text + "args: [x]\n") == ["sh", "-c", script, "x", "--lr=1"]


def test_a_sweep_of_a_command_plans_runs_that_differ(project: Any) -> None:
    text = "entry: [bash, train.sh]\nconfig: {batch_size: 1, seed: 0}\n"
    found = compiled(project, text, sweeps=("config.batch_size=2,4",))
    assert [run.entry.argv[2:] for run in found.runs] == [
        ("--batch_size=2", "--seed=0"),
        ("--batch_size=4", "--seed=0"),
    ]
    assert found.notes == ()


def test_a_mistake_of_config_is_told_once(project: Any) -> None:
    text = "entry: train.py\nconfig: {m: {a: 1}}\nrecovery: {resume: {config: {x: 1}}}\n"
    assert wrong(project, text).count("a nested mapping cannot be the flag") == 1


@pytest.mark.parametrize(
    ("script", "more", "shown"),
    [
        ("python train.py\n", "config: {lr: 1}\n", "--lr=1"),
        ("exec python train.py\n", "args: [a b]\n", "'a b'"),
        (
            "python train.py\n",
            "recovery: {resume: {when: x.pt, args: ['--resume=${hpcrun:newest}']}}\n",
            "'--resume=${hpcrun:newest}'",
        ),
        # They arrive, or may; or there are none.
        ('python train.py "$@"\n', "config: {lr: 1}\n", None),
        ("python train.py --lr ${1}\n", "args: [1]\n", None),
        ("echo; . ./env.sh\n", "args: [1]\n", None),
        ("  . env.sh\n", "args: [1]\n", None),
        ("python train.py\n", "", None),
        ("python train.py\n", "config: {lr: 1}\nflags: none\n", None),
    ],
)
def test_arguments_that_a_shells_script_does_not_use_are_told(
    project: Any, script: str, more: str, shown: str | None
) -> None:
    """Its runs of a sweep were all alike, and none of them resumed."""
    project.write("run.sh", script)
    notes = "".join(compiled(project, f"entry: [bash, run.sh]\n{more}").notes)
    told = f'{shown} does not arrive, as run.sh uses none of its arguments: write "$@"'
    assert (told in notes) == ("does not arrive" in notes) == (shown is not None)


def test_runs_that_are_started_alike_are_told(project: Any, hpcrun: Callable[..., Any]) -> None:
    text = "entry: [bash, train.sh]\nflags: none\nconfig: {batch_size: 1}\n"
    project.write("spec.yaml", BASE + text)
    answer = hpcrun("plan", "spec.yaml", "--sweep", "config.batch_size=1,2,3,4,5,6")
    assert answer.code == 0
    assert (
        "batch_size=1 and batch_size=2: their programs are started with the same arguments, "
        "variables and DeepSpeed configuration, as config.batch_size is no flag; only "
        "hpcrun.session().config tells them apart"
    ) in answer.err
    assert "and so are 2 more" in answer.err
    differ = hpcrun("plan", "spec.yaml", "--sweep", "resources.ntasks_per_node=1,2")
    assert "started with the same" not in differ.err


def test_the_order_of_arguments_is_no_part_of_a_runs_identity(project: Any) -> None:
    """The digests are those of hpcrun 0.1.0, which had the flags before the arguments."""
    script = "entry: train.py\nargs: [--file, own.yaml]\nconfig: {lr: 1}\n"
    command = "entry: [bash, train.sh]\nargs: [x]\n"
    found = [compiled(project, text).runs[0].identity for text in (script, command)]
    assert found == [
        "1eff97642a6b619c08f8946e67a949af1a5bc498fef4742a6f900f586f4f2e98",
        "8a0004c087a6528c21d6ae49414c258b2e9080a9b958ec2036430755b21296cd",
    ]
    again = compiled(project, script + "recovery: {resume: {args: [--resume]}}\n").runs[0]
    assert again.identity == found[0]
    assert compiled(project, script + "flags: key=value\n").runs[0].identity != found[0]
    flags = compiled(project, command + "config: {lr: 1}\n").runs[0]
    assert flags.identity == "f5163ad11110f0bbdb564665d9a66798114aeec3a6330ee57f896dfa953b45bf"
    assert flags.entry.argv[-1] == "--lr=1"


@pytest.mark.parametrize(
    "given",
    [
        "--checkpoint_dir=experiments",
        "--checkpoint_dir, experiments",
        "--checkpoint-dir=experiments",
    ],
)
@pytest.mark.parametrize("entry", ["train.py", "[python, train.py]"])
def test_an_option_that_is_taken_away_may_be_among_the_arguments(
    project: Any, entry: str, given: str
) -> None:
    """HelloDeepSpeed, given both, did nothing and ended with exit code 0: completed."""
    recovery = "recovery: {resume: deepspeed-checkpoint}\n"
    text = f"entry: {entry}\nargs: [checkpoint_dir, {given}, --tokenizer=t]\n{recovery}"
    command = ["python", "train.py"] if entry.startswith("[") else []
    load = "--load_checkpoint_dir=${hpcrun:newest_directory}"
    assert resumed(project, text) == [*command, "checkpoint_dir", "--tokenizer=t", load]
    shell = f"entry: [python, train.py, {given}, b]\n{recovery}"
    assert resumed(project, shell) == ["python", "train.py", "b", load]


@pytest.mark.parametrize(
    ("recovery", "expected"),
    [
        ("{}", None),
        ("{resume_args: [-r]}", ["a", "--out=o", "--ck=c", "-r"]),
        ("{resume: {args: [-r], when: x}}", ["a", "--out=o", "--ck=c", "-r"]),
        ("{resume: {instead: [b]}}", ["b", "--out=o", "--ck=c"]),
        (
            "{resume: {config: {ck: null, load: '${hpcrun:newest}'}, when: x}}",
            ["a", "--out=o", "--load=${hpcrun:newest}"],
        ),
        ("{resume: nanogpt}", ["a", "--out=o", "--ck=c", "--init_from=resume"]),
        ("{resume: {recipe: imagenet, args: [-x]}}", ["a", "--out=o", "--ck=c", "-x"]),
        ("{resume: none}", None),
    ],
)
def test_arguments_of_a_resume(project: Any, recovery: str, expected: Any) -> None:
    text = f"entry: train.py\nargs: [a]\nconfig: {{out: o, ck: c}}\nrecovery: {recovery}\n"
    assert resumed(project, text) == expected


def test_replaced_keys_arrive_though_config_makes_no_flags(project: Any) -> None:
    text = (
        "entry: [bash, train.sh]\nflags: none\nconfig: {lr: 1}\n"
        "recovery: {resume: {config: {load: x}}}\n"
    )
    assert resumed(project, text) == ["bash", "train.sh", "--load=x"]
    hydra = text.replace("flags: none", "flags: key=value")
    assert resumed(project, hydra) == ["bash", "train.sh", "lr=1", "load=x"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "recovery: {resume: hf_trainer}",
            ("recovery.resume:", "no recipe 'hf_trainer'", "did you mean 'hf-trainer'?"),
        ),
        ("recovery: {resume: {recipe: lightening}}", ("recovery.resume.recipe:", "'lightning'?")),
        ("recovery: {resume: {wen: x}}", ("recovery.resume.wen:", "did you mean 'when'?")),
        ("recovery: {resume: 3}", ("accepted is a name, or a mapping of recipe, when",)),
        (
            "recovery: {resume: nanogpt, resume_args: [x]}",
            ("resume_args", "both are given", "recovery.resume.args"),
        ),
        ("recovery: {resume: deepspeed-checkpoint}", ("programs with checkpoint_dir",)),
        ("recovery: {resume: {args: ['${hpcrun:newest}']}}", ("give recovery.resume.when",)),
        ("recovery: {resume_args: ['${hpcrun:newest}']}", ("recovery.resume_args.0",)),
        ("recovery: {resume: {when: '${hpcrun:scratch}/x'}}", ("recovery.resume.when.0",)),
        ("recovery: {resume: {when: ['']}}", ("recovery.resume.when.0", "is no pattern")),
        ("recovery: {resume: {environment: {RANK: x}}}", ("recovery.resume.environment.RANK",)),
        ("recovery: {resume: {config: {m: {a: 1}}}}", ("recovery.resume.config.m", "nested")),
        ("recovery: {resume: {args: ['${hpcrun:nevest}'], when: x}}", ("did you mean 'newest'?",)),
        ("args: ['${hpcrun:newest}']", ("args.0", "match of recovery.resume.when")),
        ("config: {x: '${hpcrun:newest}'}", ("config:", "match of recovery.resume.when")),
        ("config: {m: {a: 1}}", ("config.m", "nested mapping", "flags: key=value")),
        ("config: {m: [[1]]}\nflags: key=value", ("config.m", "plain values")),
        ("flags: '--key:value'", ("flags:", "'--key:value'", "key=value")),
    ],
)
def test_what_is_refused(project: Any, text: str, words: tuple[str, ...]) -> None:
    found = wrong(project, f"entry: [bash, train.sh]\n{text}\n")
    for word in words:
        assert word in found


@pytest.mark.parametrize("text", ["recovery: {resume: nanogpt}", "flags: key=value", "args: [x]"])
def test_a_function_takes_no_arguments(project: Any, text: str) -> None:
    assert "a function" in wrong(project, f"entry: train:main\n{text}\n")


def test_a_value_that_a_command_refers_to_cannot_be_replaced(project: Any) -> None:
    text = "entry: [bash, '${config.ck}']\nconfig: {ck: x}\nrecovery: {resume: {config: {ck: y}}}\n"
    assert "another value would not arrive there" in wrong(project, text)


def test_the_plan_shows_what_is_executed(project: Any, hpcrun: Callable[..., Any]) -> None:
    project.write(
        "spec.yaml",
        BASE + "entry: train.py\nargs: [it's]\nconfig: {x: 1}\nrecovery: {resume: nanogpt}\n",
    )
    answer = hpcrun("plan", "spec.yaml", "--sweep", "config.x=1,2")
    python = "/opt/bin/python train.py"
    quoted = "'it'\"'\"'s'"
    commands = "".join(f"run {run}: {python} {quoted} --x={run + 1}\n" for run in (0, 1))
    assert f"--- commands, one a rank\n{commands}" in answer.out
    resumes = "--- a command that resumes, from attempt 2 on, where out*/ckpt.pt exists\n"
    assert f"{resumes}run 0: {python} {quoted} --x=1 --init_from=resume\n" in answer.out
    data = json.loads(hpcrun("plan", "spec.yaml", "--json").out)
    assert data["commands"]["0"] == ["/opt/bin/python", "train.py", "it's", "--x=1"]
    project.write("spec.yaml", BASE + "entry: [bash, '${config.x}']\nconfig: {x: 1, y: 2}\n")
    out = hpcrun("plan", "spec.yaml").out
    assert "(no flags, as the command refers to them: config.x)\nrun 0: bash 1 --y=2\n" in out
    given = "entry: [bash, '${config.x}']\nconfig: {x: 1, y: false, z: null, w: 'False'}\n"
    project.write("spec.yaml", BASE + given)
    out = hpcrun("plan", "spec.yaml").out
    left = "(left out, as false or null: config.y, config.z; the text 'False' would arrive)"
    assert f"{left}\nrun 0: bash 1 --w=False\n" in out
    for style in "key=value", "none":
        assert "left out" not in hpcrun("plan", "spec.yaml", f"flags={style}").out


def test_variables_that_are_filled_in_are_not_exported(
    project: Any, hpcrun: Callable[..., Any]
) -> None:
    text = (
        "cluster: slurm\nentry: train.py\n"
        "environment: {variables: {A: 1, OUT: '${hpcrun:directory}/o'}}\n"
    )
    project.write("spec.yaml", text)
    out = hpcrun("plan", "spec.yaml").out
    assert "export A=1\n" in out
    assert "OUT" not in out
    project.write("spec.yaml", text.replace("directory}", "directry}"))
    assert "did you mean 'directory'?" in hpcrun("plan", "spec.yaml").err
    project.write("spec.yaml", text.replace("directory}", "newest}"))
    assert "match of recovery.resume.when" in hpcrun("plan", "spec.yaml").err

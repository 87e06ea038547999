"""Searches: what a spec may say, and that a run completed later is the one of a grid."""

from __future__ import annotations

import random
from typing import Any

import pytest

from hpcrun.compile import Compiled, compile_spec
from hpcrun.compile.freeze import freeze
from hpcrun.compile.sweep.late_run import complete, with_upper_bounds
from hpcrun.errors import SpecError
from hpcrun.state.plan import SEARCH

BASE = """\
cluster: slurm
objective: {metric: eval/loss}
config: {lr: 0.1, width: 8, opt: adam, name: 'run-${config.lr}', wider: '${config.width}'}
"""
FUNCTION = """\
entry: train:main
deepspeed_config: ds.json
deepspeed: {train_batch_size: 8, optimizer: {type: Adam, params: {lr: '${config.lr}'}}}
"""
SCRIPT = "entry: train.py\nargs: [--twice, '${config.width}']\n"
COMMAND = "entry: [python, train.py, 'lr=${config.lr}', '${config.name}']\n"
SPACE = {
    "lr": "{loguniform: [1.0e-5, 0.1]}",
    "width": "{int: [1, 64]}",
    "opt": "[adam, null, 3, true]",
}


def _search(**changes: Any) -> str:
    space = ", ".join(f"{key}: {form}" for key, form in {**SPACE, **changes}.items() if form)
    return f"sweep: {{search: {{space: {{{space}}}, trials: 6, parallel: 2}}}}\n"


def _in_full(text: str) -> str:
    for key in SPACE:
        text = text.replace(f"{key}:", f"config.{key}:", 1)
    return text


def _compiled(project: Any, text: str) -> Compiled:
    return compile_spec(project.write("demo.yaml", BASE + text))


@pytest.mark.parametrize("entry", [FUNCTION, SCRIPT, COMMAND])
def test_a_run_with_its_values_is_what_a_grid_makes_of_them(project: Any, entry: str) -> None:
    late = _compiled(project, entry + _in_full(_search()))
    plan = freeze(late)
    assert [run.label for run in plan.runs] == [f"trial {number}" for number in range(6)]
    assert len({run.identity for run in plan.runs}) == 6
    assert late.max_parallel == 2
    assert plan.runs[0].spec["config"]["lr"] == "<lr>"
    assert plan.runs[0].swept == {}
    most = with_upper_bounds(plan.runs[5])
    assert (most.label, most.swept) == ("trial 5", {})
    assert {"lr": 0.1, "width": 64, "opt": True}.items() <= most.spec["config"].items()
    draw = random.Random(7)
    for _ in range(5):
        values: dict[str, Any] = {
            "config.lr": draw.choice([1e-05, 0.1, draw.uniform(1e-5, 0.1)]),
            "config.width": draw.randint(1, 64),
            "config.opt": draw.choice(["adam", None, 3, True]),
        }
        forms = {key: ("null" if one is None else str(one)) for key, one in values.items()}
        grid = ", ".join(f"{key}: [{one}]" for key, one in forms.items())
        (expected,) = _compiled(project, f"{entry}sweep: {{grid: {{{grid}}}}}\n").runs
        point = complete(plan.runs[2], values)
        found = point.apply_to(plan.runs[2])
        assert {k: v for k, v in found.spec.items() if k != SEARCH} == expected.spec
        assert found.entry == expected.entry
        assert found.label == expected.label
        assert found.swept == expected.swept == values
        assert with_upper_bounds(found) is found


WHEN = {
    "width": "{int: [1, 64], when: {opt: [adam, null]}}",
    "config.name": "{choice: [x, y], when: {width: 3, opt: adam}}",
}


@pytest.mark.parametrize("entry", [FUNCTION, SCRIPT, COMMAND])
@pytest.mark.parametrize(
    ("values", "label"),
    [
        ({"lr": 0.01, "opt": True}, "lr=0.01,opt=true"),
        ({"lr": 0.01, "opt": "adam", "width": 7}, "lr=0.01,opt=adam,width=7"),
        ({"lr": 0.01, "opt": None, "width": 3}, "lr=0.01,opt=null,width=3"),
        ({"lr": 1, "opt": "adam", "width": 3, "name": "y"}, "lr=1,opt=adam,width=3,name=y"),
    ],
)
def test_keys_that_only_some_runs_have(
    project: Any, entry: str, values: dict[str, Any], label: str
) -> None:
    """A run without one has the spec's own value, also where another key refers to it."""
    base = BASE.replace("name: 'run-${config.lr}'", "name: x, again: '${config.name}'")
    text = base + entry.replace("'${config.name}'", "'${config.again}'")
    late = compile_spec(project.write("demo.yaml", text + _in_full(_search(**WHEN))))
    run = freeze(late).runs[0]
    assert run.spec[SEARCH]["base"] == {"config.width": 8, "config.name": "x"}
    point = complete(run, {f"config.{key}": value for key, value in values.items()})
    forms = {key: ("null" if one is None else str(one)) for key, one in values.items()}
    grid = ", ".join(f"config.{key}: [{one}]" for key, one in forms.items())
    (expected,) = compile_spec(
        project.write("demo.yaml", f"{text}sweep: {{grid: {{{grid}}}}}\n")
    ).runs
    found = point.apply_to(run)
    assert {k: v for k, v in found.spec.items() if k != SEARCH} == expected.spec
    assert (found.entry, found.swept) == (expected.entry, expected.swept)
    assert found.label == expected.label == label
    most = with_upper_bounds(run).spec["config"]
    assert (most["width"], most["name"], most["opt"]) == (64, "y", True)


def test_more_trials_are_the_same_runs_and_further_ones(project: Any) -> None:
    few = [run.identity for run in _compiled(project, SCRIPT + _search()).runs]
    more = _compiled(project, SCRIPT + _search().replace("trials: 6", "trials: 9, sampler: random"))
    assert [run.identity for run in more.runs][:6] == few
    other = _compiled(project, SCRIPT + _search(width="{int: [1, 65]}")).runs
    assert not {run.identity for run in other} & {*few}


def test_the_value_of_runs_without_a_key_makes_other_runs(project: Any) -> None:
    """Also where it is one that runs with the key may have."""
    text = SCRIPT + _search(width="{int: [1, 64], when: {opt: adam}}")
    found = [
        compile_spec(project.write("demo.yaml", BASE.replace("width: 8", f"width: {width}") + text))
        for width in (1, 64, 64)
    ]
    first, other, same = ([run.identity for run in one.runs] for one in found)
    assert other == same
    assert not {*first} & {*other}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            SCRIPT + _search().replace("{search:", "{grid: {opt: [a, b]}, search:"),
            "a search stands alone, and there is grid too",
        ),
        (
            SCRIPT + _search().replace("{search:", "{max_parallel: 3, search:"),
            "a search has its own: sweep.search.parallel",
        ),
        (SCRIPT + _search().replace("trials: 6", "trials: 0"), "a whole number from 1"),
        (SCRIPT + _search().replace("trials: 6", "trials: 100001"), "from 1 to 100,000"),
        (SCRIPT + _search().replace("parallel: 2", "parallel: 0"), "a whole number from 1"),
        (SCRIPT + "tags: ['a-${config.opt}']\n" + _search(), "tags would change with these keys"),
        ("entry: '${config.opt}.py'\n" + _search(opt="[train, other]"), "entry would change"),
        (
            SCRIPT + "resources: {nodes: '${config.width}'}\n" + _search(width="{int: [1, 4]}"),
            "resources would change",
        ),
        (
            SCRIPT + "notes: '${oc.select:config.lr}'\n" + _search(),
            "goes through resolvers, relative or nested",
        ),
        (
            SCRIPT + "environment: {container: {image: /i.sif, runtime: apptainer}}\n" + _search(),
            "does not go together with environment.container.image",
        ),
        (SCRIPT + "extendable: [config.name]\n" + _search(), "not go together with extendable"),
    ],
)
def test_what_does_not_go_together_with_a_search(project: Any, text: str, expected: str) -> None:
    project.write("other.py", "")
    with pytest.raises(SpecError) as found:
        _compiled(project, text)
    assert expected in str(found.value)


POPULATION = "trials: 6, parallel: 2, population: {every: 10}"
SAVES = "checkpoint: {every: 10}\n"
SESSION = "import hpcrun\nsession = hpcrun.session()\n"


@pytest.mark.parametrize(
    ("text", "program", "expected"),
    [
        ("entry: train:main\n" + SAVES, "", ""),
        (SCRIPT + SAVES, SESSION, ""),
        ("entry: [python, train.py]\n" + SAVES, SESSION, ""),
        (
            SCRIPT + SAVES,
            "print()",
            "takes programs that save through hpcrun.session(), and this one",
        ),
        ("entry: [python, train.py]\n" + SAVES, "print()", "write prune: halving"),
        (
            SCRIPT + SAVES + "recovery: {resume: {when: a.pt}}\n",
            SESSION,
            "this one saves by itself",
        ),
        (SCRIPT + SAVES + "recovery: {resume_args: [--r]}\n", SESSION, "this one saves by itself"),
        (SCRIPT + SAVES + "framework: huggingface\n", SESSION, "this one saves by itself"),
        (SCRIPT, SESSION, "and checkpoint.every is null"),
        (SCRIPT + "checkpoint: {every: 11}\n", SESSION, "set checkpoint.every to 10 or less"),
        (
            "entry: train:main\nresources: {ntasks_per_node: 2}\nparallel: {tensor: 2}\n" + SAVES,
            "",
            "does not go together with parallel: that is not tested",
        ),
        (
            "entry: train:main\nresources: {pack: {runs_per_node: 2}}\n" + SAVES,
            "",
            "does not go together with resources.pack",
        ),
    ],
)
def test_programs_of_a_population(project: Any, text: str, program: str, expected: str) -> None:
    project.write("train.py", program or "def main(session): ...\n")
    text += _search().replace("trials: 6, parallel: 2", POPULATION)
    if not expected:
        assert _compiled(project, text).runs[0].spec[SEARCH]["population"]["size"] == 2
        return
    with pytest.raises(SpecError) as found:
        _compiled(project, text)
    assert expected in str(found.value)


def test_a_search_needs_what_it_searches_for(project: Any) -> None:
    text = BASE.replace("objective: {metric: eval/loss}\n", "")
    with pytest.raises(SpecError, match="needs the objective that is searched for"):
        compile_spec(project.write("demo.yaml", text + SCRIPT + _search()))


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        (SCRIPT, None),
        (COMMAND, None),
        ("flags: none\n" + SCRIPT, "started with its config.lr, config.opt, as that is no flag"),
        ("flags: none\n" + COMMAND, "started with its config.width, config.opt, as"),
        (FUNCTION, None),
    ],
)
def test_values_that_do_not_reach_the_program_are_told(
    project: Any, entry: str, told: str | None
) -> None:
    text = entry + _in_full(_search())
    notes = [one for one in _compiled(project, text).notes if "is no flag" in one]
    assert len(notes) == (told is not None)
    assert all(told in one for one in notes if told)


@pytest.mark.parametrize(
    ("progress", "told"),
    [
        ("{pattern: 'step (?P<step>\\d+)'}", True),
        ("{pattern: 'step (?P<step>\\d+)', total: 9}", False),
        ("{pattern: 'step (?P<step>\\d+)/(?P<total>\\d+)'}", False),
        ("{}", False),
    ],
)
def test_pruning_that_will_end_no_run_is_told(project: Any, progress: str, told: bool) -> None:
    text = SCRIPT + _search().replace("trials: 6", "trials: 6, prune: median")
    notes = _compiled(project, f"{text}progress: {progress}\n").notes
    assert any("ends no run, as nothing says how many steps" in one for one in notes) == told

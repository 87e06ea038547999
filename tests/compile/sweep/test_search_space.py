"""The block of a search: what its space may say, and what is wrong with it."""

from __future__ import annotations

from typing import Any

import pytest

from hpcrun.compile import Compiled, compile_spec
from hpcrun.errors import SpecError
from hpcrun.state.plan import SEARCH

SCRIPT = """\
cluster: slurm
entry: train.py
objective: {metric: eval/loss}
config: {lr: 0.1, width: 8, opt: adam, name: 'run-${config.lr}', rate: 0}
"""
SPACE = {
    "lr": "{loguniform: [1.0e-5, 0.1]}",
    "width": "{int: [1, 64]}",
    "opt": "[adam, null, 3, true]",
}


def _search(**changes: Any) -> str:
    space = ", ".join(f"{key}: {form}" for key, form in {**SPACE, **changes}.items() if form)
    return f"sweep: {{search: {{space: {{{space}}}, trials: 6}}}}\n"


def _compiled(project: Any, text: str) -> Compiled:
    return compile_spec(project.write("demo.yaml", text))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"lr": "{loguniform: [0, 1]}"}, "which do not begin above 0"),
        ({"lr": "{uniform: [1, 0]}"}, "the first is not below the second"),
        ({"lr": "{uniform: 3}"}, "accepted is {uniform: [low, high]}"),
        ({"width": "{int: [1, 6.5]}"}, "which are not whole numbers"),
        ({"width": "{int_uniform: [1, 6]}"}, "write config.width: {int: [1, 6]}"),
        ({"lr": "{distribution: uniform, min: 0, max: 1.5}"}, "write config.lr: {uniform: [0,"),
        ({"lr": "0.3"}, "found a number; accepted are {loguniform"),
        ({"opt": "[adam]"}, "a list of two values or more"),
        ({"opt": "{choice: adam}"}, "a list of two values or more"),
        ({"opt": "[adam, adam]"}, "a value is given twice"),
        ({"opt": "[1, 1.0]"}, "a value is given twice"),
        ({"opt": "[true, 1, a]"}, "a value is given twice"),
        ({"opt": "[{a: 1}, {a: 2}]"}, "a choice has plain values"),
        ({"opt": "[.nan, 1]"}, "a choice has plain values"),
        ({"lr": "{loguniform: [1.0e-300, 1.0e+300]}"}, "which are too far apart"),
        ({"wdth": "[1, 2]"}, "there is no key wdth"),
        ({"resources.nodes": "[1, 2]"}, "a search chooses values of config"),
        ({"config": "[1, 2]"}, ""),
        ({"lr": "", "width": "", "opt": ""}, "sweep.search.space: is missing"),
    ],
)
def test_what_is_wrong_with_a_space(project: Any, changes: dict[str, str], expected: str) -> None:
    with pytest.raises(SpecError) as found:
        _compiled(project, SCRIPT + _search(**changes))
    assert expected in str(found.value)


@pytest.mark.parametrize("keys", [("net", "net.depth"), ("net.depth", "net")])
def test_a_key_and_one_inside_it(project: Any, keys: tuple[str, str]) -> None:
    text = SCRIPT.replace("config: {", "flags: key=value\nconfig: {net: {depth: 1}, ")
    with pytest.raises(SpecError) as found:
        _compiled(project, text + _search(**dict.fromkeys(keys, "[1, 2]")))
    assert f"config.{keys[1]}: overlaps with config.{keys[0]}, which is" in str(found.value)


@pytest.mark.parametrize("form", ["{normal: [0, 1]}", "'range(1, 5)'"])
def test_a_form_that_a_search_has_not_is_not_proposed(project: Any, form: str) -> None:
    with pytest.raises(SpecError) as found:
        _compiled(project, SCRIPT + _search(width=form))
    assert "accepted are {loguniform" in str(found.value)
    assert "write config.width" not in str(found.value)


@pytest.mark.parametrize(
    ("first", "expected"),
    [
        ("{lr: 0.01, width: 3, opt: null}", ""),
        ("{config.lr: 1.0e-5, width: 64, opt: true}", ""),
        ("{lr: 0.01, width: 3}", "has no value of config.opt"),
        ("{lr: 0.01, width: 3, opt: adam, name: x}", "has name, which the space does not have"),
        ("{lr: 0.2, width: 3, opt: adam}", "found 0.2, which is not in {loguniform: [1e-05, 0.1]}"),
        ("{lr: 0.01, width: 3.5, opt: adam}", "found 3.5, which is not in {int: [1, 64]}"),
        ("{lr: 0.01, width: true, opt: adam}", "found True, which is not in {int: [1, 64]}"),
        ("{lr: fast, width: 3, opt: adam}", "found 'fast', which is not in {loguniform"),
        ("{lr: 0.01, width: 3, opt: 1}", "found 1, which is not in {choice:"),
        ("{}", "has no value of config.lr, config.width, config.opt"),
        (
            "{lr: 0.01, width: 3, opt: adam}, {lr: 0.01, width: 3, config.opt: adam}",
            "search.first.1: {'config.lr': 0.01, 'config.width': 3, 'config.opt': 'adam'} is given",
        ),
        (
            ", ".join(f"{{lr: 0.0{at}, width: 3, opt: adam}}" for at in range(1, 8)),
            "first: found 7 points; trials: 6 (write trials: 7",
        ),
    ],
)
def test_points_that_are_tried_first(project: Any, first: str, expected: str) -> None:
    text = SCRIPT + _search().replace("trials: 6", f"trials: 6, first: [{first}]")
    if not expected:
        (point,) = _compiled(project, text).runs[0].spec[SEARCH]["first"]
        assert [*point] == ["config.lr", "config.width", "config.opt"]
        return
    with pytest.raises(SpecError) as found:
        _compiled(project, text)
    assert expected in str(found.value)


CONDITIONAL = {
    "rate": "{uniform: [0, 1], when: {opt: [adam, 3], width: 7}}",
    "width": "{int: [1, 64], when: {config.opt: adam}}",
}


def test_conditions_are_spelled_out_and_keys_ordered_by_them(project: Any) -> None:
    changes = {"lr": "", "width": "", "opt": "", **CONDITIONAL}
    text = _search(**changes).replace("rate:", "opt: [adam, null, 3], rate:")
    (run, *_) = _compiled(project, SCRIPT + text).runs
    search = run.spec[SEARCH]
    assert [*search["space"].items()] == [
        ("config.opt", {"choice": ["adam", None, 3]}),
        ("config.width", {"int": [1, 64], "when": {"config.opt": ["adam"]}}),
        (
            "config.rate",
            {"uniform": [0, 1], "when": {"config.opt": ["adam", 3], "config.width": [7]}},
        ),
    ]
    assert search["base"] == {"config.width": 8, "config.rate": 0}


def test_what_runs_without_a_key_have_may_be_typed(project: Any) -> None:
    spec = project.write("demo.yaml", SCRIPT + _search(**CONDITIONAL))
    compiled = compile_spec(spec, ["config.width=16"])
    assert compiled.runs[0].spec[SEARCH]["base"]["config.width"] == 16
    told = "config.width: counts in runs whose config.opt is not as its when says"
    assert any(told in note for note in compiled.notes)
    with pytest.raises(SpecError, match=r"sweeps config\.lr: no run would have it"):
        compile_spec(spec, ["config.lr=0.5"])


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"width": "{int: [1, 64], when: {}}"}, "width.when: is empty"),
        ({"width": "{int: [1, 64], when: adam}"}, "found a string; accepted are keys of the space"),
        ({"width": "{int: [1, 64], when: {missing: 1}}"}, "no key missing in the space"),
        ({"width": "{int: [1, 64], when: {1: 2}}"}, "the key 1 is a whole number"),
        ({"width": "{int: [1, 64], when: {lr: 0.01}}"}, "which is never one value again"),
        ({"width": "{int: [1, 64], when: {opt: sgd}}"}, "found 'sgd', which is not in {choice:"),
        ({"width": "{int: [1, 64], when: {opt: 1}}"}, "found 1, which is not in {choice:"),
        ({"opt": "{choice: [a, b], when: {width: 65}}"}, "found 65, which is not in {int: [1, 64]"),
        ({"width": "{int: [1, 64], when: {width: 3}}"}, "config.width wait for each other"),
        (
            {
                "width": "{int: [1, 64], when: {opt: a}}",
                "opt": "{choice: [a, b], when: {width: 3}}",
            },
            "config.width, config.opt wait for each other",
        ),
        (
            {
                "width": "{int: [1, 64], when: {opt: 3}}",
                "rate": "{uniform: [0, 1], when: {width: 3, opt: adam}}",
            },
            "no run has it: config.opt would have to have two values at once",
        ),
        ({"config.name": "{choice: [a, b], when: {opt: adam}}"}, "has no plain value for them"),
        ({"width": "{when: {opt: adam}}"}, "accepted are {loguniform"),
    ],
)
def test_what_is_wrong_with_a_condition(
    project: Any, changes: dict[str, str], expected: str
) -> None:
    with pytest.raises(SpecError) as found:
        _compiled(project, SCRIPT + _search(**changes))
    assert expected in str(found.value)


@pytest.mark.parametrize(
    ("first", "expected"),
    [
        ("{lr: 0.01, opt: adam, width: 7, rate: 0.5}", ""),
        ("{lr: 0.01, opt: adam, width: 8}", ""),
        ("{lr: 0.01, opt: null}", ""),
        ("{lr: 0.01, opt: adam}", "has no value of config.width"),
        ("{lr: 0.01, opt: adam, width: 7}", "has no value of config.rate"),
        (
            "{lr: 0.01, opt: null, width: 7}",
            "this point does not have it: when: {config.opt: ['adam']}",
        ),
        ("{lr: 0.01, opt: adam, width: 8, rate: 0.5}", "this point does not have it"),
    ],
)
def test_first_points_have_the_keys_that_their_values_call_for(
    project: Any, first: str, expected: str
) -> None:
    text = SCRIPT + _search(**CONDITIONAL).replace("trials: 6", f"trials: 6, first: [{first}]")
    if not expected:
        assert len(_compiled(project, text).runs[0].spec[SEARCH]["first"]) == 1
        return
    with pytest.raises(SpecError) as found:
        _compiled(project, text)
    assert expected in str(found.value)


@pytest.mark.parametrize(
    ("sampler", "trials", "changes", "expected"),
    [
        ("grid", 256, {"lr": ""}, ""),
        ("grid", 257, {"lr": ""}, "found 257, and the space has 256 points: others repeat"),
        ("grid", 6, {}, "a grid has no loguniform key, and config.lr is one"),
        # 64 with adam, one for each of the three others.
        ("grid", 67, {"lr": "", "width": "{int: [1, 64], when: {opt: adam}}"}, ""),
        ("grid", 68, {"lr": "", "width": "{int: [1, 64], when: {opt: adam}}"}, "write trials: 67"),
        ("gp", 6, {}, ""),
        ("gp", 6, {"width": "{int: [1, 64], when: {opt: adam}}"}, "config.width is not in all"),
        ("qmc", 6, {}, ""),
        ("cmaes", 6, {"opt": "{uniform: [0, 1]}"}, ""),
        ("cmaes", 6, {}, "config.opt is no such one"),
        ("anneal", 6, {}, "accepted is tpe or gp or cmaes or random or qmc or grid"),
    ],
)
def test_samplers(
    project: Any, sampler: str, trials: int, changes: dict[str, str], expected: str
) -> None:
    text = _search(**changes).replace("trials: 6", f"trials: {trials}, sampler: {sampler}")
    if not expected:
        assert len(_compiled(project, SCRIPT + text).runs) == trials
        return
    with pytest.raises(SpecError) as found:
        _compiled(project, SCRIPT + text)
    assert expected in str(found.value)


def test_more_trials_than_points_are_told(project: Any) -> None:
    for opt, expected in (("[a, b]", True), ("[a, b, c, d, e, f]", False)):
        notes = _compiled(project, SCRIPT + _search(lr="", width="", opt=opt)).notes
        told = any("found 6, and the space has 2 points: others repeat one" in one for one in notes)
        assert told == expected


@pytest.mark.parametrize("budget", ["0", "-1", "1h"])
def test_a_budget_is_hours_above_none(project: Any, budget: str) -> None:
    with pytest.raises(SpecError, match=r"sweep\.search\.budget: found"):
        _compiled(project, SCRIPT + _search().replace("trials: 6", f"trials: 6, budget: {budget}"))


@pytest.mark.parametrize(
    ("population", "more", "expected"),
    [
        ("{every: 100}", "", ""),
        ("{every: 100, share: 0.5, resample: 1}", "sampler: qmc", ""),
        ("{}", "", "sweep.search.population.every: found 0; accepted is a whole number from 1"),
        ("{every: 10, share: 0.6}", "", "population.share: found 0.6; accepted is above 0 to 0.5"),
        ("{every: 10, share: 0}", "", "population.share: found 0"),
        ("{every: 10, resample: 1.5}", "", "population.resample: found 1.5; accepted is 0 to 1"),
        ("{every: 10, size: 4}", "", "size"),
        ("{every: 10}", "parallel: null", "parallel: found null; the first trials are so many"),
        ("{every: 10}", "parallel: 6", "less than trials (6), such as parallel: 1"),
        ("{every: 10}", "prune: median", "does not go together with prune: median"),
        ("{every: 10}", "sampler: gp", "does not go together with sampler: gp"),
        ("{every: 10}", "learn_from: [study]", "does not go together with learn_from"),
        ("{every: 10}", "more_objectives: [{metric: s, mode: min}]", "with more_objectives"),
    ],
)
def test_populations(project: Any, population: str, more: str, expected: str) -> None:
    given = {"parallel": "3", **dict(one.split(": ", 1) for one in [more] if one)}
    keys = ", ".join(f"{key}: {value}" for key, value in given.items())
    text = _search().replace("trials: 6", f"trials: 6, {keys}, population: {population}")
    text = SCRIPT.replace("train.py", "train.py:main") + "checkpoint: {every: 10}\n" + text
    if not expected:
        found = _compiled(project, text).runs[0].spec[SEARCH]["population"]
        assert (found["every"], found["size"]) == (100, 3)
        return
    with pytest.raises(SpecError) as told:
        _compiled(project, text)
    assert expected in str(told.value)


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("learn_from: [study, other-2]", ""),
        ("learn_from: [../study]", "found '../study'; accepted is the name of an experiment"),
        ("learn_from: [study], sampler: qmc", "qmc learns from no run"),
        ("learn_from: [study, a, study]", "learn_from.2: study is given twice"),
    ],
)
def test_experiments_to_learn_from(project: Any, more: str, expected: str) -> None:
    text = _search().replace("trials: 6", f"trials: 6, {more}")
    if not expected:
        names = _compiled(project, SCRIPT + text).runs[0].spec[SEARCH]["learn_from"]
        assert names == ["study", "other-2"]
        return
    with pytest.raises(SpecError) as found:
        _compiled(project, SCRIPT + text)
    assert expected in str(found.value)


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("more_objectives: [{metric: seconds, mode: min}, {metric: a, mode: max}]", ""),
        ("more_objectives: [{metric: seconds}]", "more_objectives.0.mode: is missing"),
        ("more_objectives: [{metric: eval/loss, mode: min}]", "name each metric once"),
        ("more_objectives: [{metric: s, mode: min}], prune: median", "judges by one objective"),
        ("more_objectives: [seconds]", "more_objectives.0"),
    ],
)
def test_several_objectives(project: Any, more: str, expected: str) -> None:
    text = _search().replace("trials: 6", f"trials: 6, {more}")
    if not expected:
        found = _compiled(project, SCRIPT + text).runs[0].spec[SEARCH]["more_objectives"]
        assert [one["metric"] for one in found] == ["seconds", "a"]
        return
    with pytest.raises(SpecError) as found_error:
        _compiled(project, SCRIPT + text)
    assert expected in str(found_error.value)

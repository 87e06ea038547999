"""From a spec on disk to checked runs."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcrun.compile import chain, extendable
from hpcrun.compile.freeze import Compiled, CompiledRun, Select, freeze
from hpcrun.compile.run_template import Frame
from hpcrun.compile.source import yaml_reader
from hpcrun.compile.source.interpolate import interpolate_one
from hpcrun.compile.source.marked_tree import Key, Mark, Tree, dotted, get_at
from hpcrun.compile.source.problems import Problems
from hpcrun.compile.spec import checks, compose, profile, schema
from hpcrun.compile.sweep import expansion as sweep_expansion
from hpcrun.compile.sweep.matcher import Matcher
from hpcrun.compile.sweep.point import Option, Point
from hpcrun.compile.sweep.resolver import Resolved, Resolver
from hpcrun.compile.target import deepspeed, entry
from hpcrun.errors import Problem, UsageError
from hpcrun.state.plan import Plan
from hpcrun.state.spec.cluster_profile import Profile
from hpcrun.state.spec.experiment import Spec
from hpcrun.state.spec.sweep_block import Sweep
from hpcrun.text import listed


def compile_spec(
    spec: Path | str,
    overrides: Sequence[str] = (),
    sweeps: Sequence[str] = (),
    *,
    root: Path | None = None,
) -> Compiled:
    """Read, check and resolve a spec; nothing is written and no cluster is asked.

    Parameters
    ----------
    spec
        The path of a spec, or the name of an experiment that ships.
    overrides
        ``key=value`` and ``+key=value``.
    sweeps
        ``key=a,b``.
    root
        Where experiments live; None for the profile's root.

    Raises
    ------
    SpecError
        Every mistake that was found.
    UsageError
        There is no such spec.
    """
    path, shown = compose.find_spec(spec)
    return _Compiler(path, shown).compile(overrides, sweeps, root)


def compile_plan(
    spec: Path | str,
    overrides: Sequence[str] = (),
    sweeps: Sequence[str] = (),
    *,
    root: Path | None = None,
    submission: int = 1,
    numbers: Mapping[str, int] | None = None,
    select: Select = None,
) -> Plan:
    """``freeze(compile_spec(…), …)``."""
    compiled = compile_spec(spec, overrides, sweeps, root=root)
    return freeze(compiled, submission=submission, numbers=numbers, select=select)


def compile_chain(
    spec: Path | str,
    overrides: Sequence[str] = (),
    sweeps: Sequence[str] = (),
    *,
    root: Path | None = None,
) -> list[Compiled]:
    """A spec and those that it depends on, each after its own dependencies; it comes last.

    Of the overrides, ``cluster=`` goes for all of them.

    Raises
    ------
    SpecError, UsageError
        As `compile_spec`; or they do not go together.
    """
    last = compile_spec(spec, overrides, sweeps, root=root)
    shared = [override for override in overrides if override.startswith("cluster=")]
    return [*chain.before(last, lambda path: compile_spec(path, shared, root=root)), last]


def default_root(cluster: dict[str, Any]) -> Path:
    """Where experiments live when neither --root nor HPCRUN_ROOT says so."""
    return Path(cluster["root"]).expanduser().absolute()


class _Compiler:
    """One compilation; holds what its steps share."""

    def __init__(self, path: Path, shown: str) -> None:
        self.path, self.shown = path, shown
        self.directory = path.parent
        self.problems = Problems()
        self.files: dict[str, Tree | None] = {}
        self.entries: dict[str, tuple[entry.Located | None, tuple[Problem, ...]]] = {}
        self.code_root: Path | None = None
        self.frames: dict[str, Frame] = {}

    def compile(
        self, overrides: Sequence[str], sweeps: Sequence[str], root: Path | None
    ) -> Compiled:
        problems = self.problems
        plain = compose.read(self.path, self.shown, problems)
        if problems.unreadable:
            problems.check()
        plain = plain.over(
            Tree({"name": self.path.stem}, {("name",): Mark(self.shown, None, self.directory)})
        )
        given = compose.parse_overrides(overrides, self.directory, problems)
        known = self._with_deepspeed(plain, Problems(), compose.apply(plain, given))
        tree = plain
        for override in given:
            if override.adds or compose.check_exists(override.key, known, problems):
                tree, known = override.value.over(tree), override.value.over(known)
        tree.data["depends_on"] = chain.spelled_out(tree.data.get("depends_on"))
        loaded = self._profile(tree)
        limits = schema.defaults(Profile)["limits"]
        if loaded is not None:
            limits = loaded.data["limits"]
            tree = tree.over(loaded.resources)
            tree.data["cluster"] = loaded.data["name"]
        block = tree.data.pop("sweep", None)
        fans = self._sweep_block(block, tree)
        base = tree.over(Tree(schema.defaults(Spec)))
        base.data = {name: base.data[name] for name in base.data if name != "sweep"}

        def exists(key: Key, mark: Mark) -> bool:
            return compose.check_exists(key, known, problems, mark)

        base.marks = {key: mark for key, mark in base.marks.items() if key[:1] != ("sweep",)}
        resolve = Resolver(base, self._with_deepspeed)
        matcher = Matcher(tree, resolve, exists, problems)
        expansion = sweep_expansion.Expansion(tree, exists, matcher, problems)
        expanded = expansion.expand(fans, sweeps, self.directory)
        needs = chain.needs(base, expanded.points, problems)
        whole = self._with_deepspeed(base, Problems())
        extends = extendable.keys(whole, expanded.points, exists, problems)
        runs = self._runs(resolve, expanded.points, limits)
        problems.check()
        assert loaded is not None
        assert self.code_root is not None
        place = Path(os.path.realpath(root or default_root(loaded.data)))
        _check_root(place)
        inside = self.directory.is_relative_to(self.code_root)
        return Compiled(
            name=runs[0].spec["name"],
            root=place,
            spec_file=str(self.path),
            code_root=str(self.code_root),
            directory=os.path.relpath(self.directory, self.code_root) if inside else ".",
            cluster=loaded.data,
            max_parallel=fans["max_parallel"],
            repeats=expanded.repeats,
            extendable=extends,
            needs=needs,
            runs=tuple(runs),
        )

    def _profile(self, tree: Tree) -> profile.Loaded | None:
        name = interpolate_one(tree, ("cluster",), self.problems)
        if self.problems.under("cluster"):
            return None
        if name is None:
            name = profile.default_name()
        if not isinstance(name, str):
            found = f"found {yaml_reader.kind_of(name)}; accepted is the name of a profile"
            self.problems.at(tree, ("cluster",), found)
            return None
        return profile.load(name, self.directory, tree.mark(("cluster",)), self.problems)

    def _sweep_block(self, block: Any, tree: Tree) -> dict[str, Any]:
        checker = schema.Checker(tree, Spec, self.problems)
        checked = checker.block(block or {}, Sweep, ("sweep",))
        checks.check_sweep(checked, tree, self.problems)
        return checked

    def _with_deepspeed(self, tree: Tree, problems: Problems, chosen: Tree | None = None) -> Tree:
        """The tree over the file that its (or ``chosen``'s) ``deepspeed_config`` names."""
        chosen = chosen or tree
        value = interpolate_one(chosen, ("deepspeed_config",), problems)
        if value is None:
            return tree
        mark = chosen.mark(("deepspeed_config",))
        cached = json.dumps([value, str(mark.directory), mark.line])
        if cached not in self.files:
            self.files[cached] = deepspeed.read_file(value, chosen, self.problems)
        file = self.files[cached]
        return tree.over(file.below(("deepspeed",))) if file is not None else tree

    def _runs(
        self, resolve: Resolver, points: list[Point], limits: dict[str, Any]
    ) -> list[CompiledRun]:
        names = sweep_expansion.short_names(
            option.key for point in points for option in point if not option.is_set
        )
        short = {dotted(key): name for key, name in names.items()}
        runs: dict[str, CompiledRun] = {}
        reports = []
        for point in points:
            problems = Problems()
            resolved = resolve(point, problems)
            swept = {dotted(one.key): _swept(one, resolved.data) for one in point if not one.is_set}
            label = sweep_expansion.label(swept, short)
            run = self._run(resolved, swept, label, limits, problems)
            if run is not None and not problems:
                other = runs.setdefault(run.identity, run)
                if other.spec != run.spec:
                    found = "two runs compute the same, and differ in where they run or are saved"
                    problems.at(resolved.tree, ("sweep",), found, "leave one of them out")
                self._check_one(run, next(iter(runs.values())), resolved.tree, problems)
            reports.append((label, problems.found))
        for problem in gathered(reports):
            self.problems.add(problem)
        return list(runs.values())

    def _check_one(
        self, run: CompiledRun, first: CompiledRun, tree: Tree, problems: Problems
    ) -> None:
        """See that what an experiment has one of is the same for its runs."""
        for key, what in (("name",), "name"), (("environment", "python"), "Python"):
            one, other = get_at(first.spec, key), get_at(run.spec, key)
            if one != other:
                found = f"an experiment has one {what}, and a sweep makes it {one!r} and {other!r}"
                problems.at(tree, key, found)

    def _run(
        self,
        resolved: Resolved,
        swept: dict[str, Any],
        label: str,
        limits: dict[str, Any],
        problems: Problems,
    ) -> CompiledRun | None:
        key = resolved.elsewhere
        frame = self.frames.get(key) if key is not None else None
        if frame is None:
            frame = self._frame(resolved, limits)
            if key is not None:
                self.frames[key] = frame
        for problem in frame.problems:
            problems.add(problem)
        config = frame.config(resolved, problems)
        found = frame.entry(config, resolved.tree, problems)
        if problems or found is None:
            return None
        digest = frame.identity(found, config, swept)
        return CompiledRun(digest, label, swept, found, frame.spec(config))

    def _frame(self, resolved: Resolved, limits: dict[str, Any]) -> Frame:
        problems, tree = Problems(), resolved.tree
        data = {name: resolved.data[name] for name in resolved.data if name != "config"}
        spec = schema.Checker(tree, Spec, problems).block(data, Spec)
        checks.check(spec, limits, tree, problems)
        checks.settle_paths(spec, self.directory, tree, problems)
        located = self._locate(spec, tree, problems)
        kind = located.kind if located else None
        config = spec["deepspeed"] = deepspeed.without_nulls(spec["deepspeed"])
        deepspeed.check(config, kind, spec["resources"]["gpus_per_node"], tree, problems)
        shape = ("nodes", "ntasks_per_node", "gpus_per_node")
        if not problems.under(*(f"resources.{name}" for name in shape)):
            spec["deepspeed"] = self._solve(spec, kind, tree, problems)
        return Frame(spec, located, self.code_root, self.directory, problems.found)

    def _solve(
        self, spec: dict[str, Any], kind: str | None, tree: Tree, problems: Problems
    ) -> dict[str, Any]:
        config: dict[str, Any] = spec["deepspeed"]
        wanted = spec["resources"]
        per_node = wanted["ntasks_per_node"] or wanted["gpus_per_node"] or 1
        ranks = deepspeed.data_parallel(
            config, wanted["nodes"] * per_node, spec["model_parallel_size"], tree, problems
        )
        if ranks is None:
            return config
        return deepspeed.solve_batch(config, kind or "script", ranks, tree, problems)

    def _locate(self, spec: dict[str, Any], tree: Tree, problems: Problems) -> entry.Located | None:
        directory = tree.mark(("entry",)).directory
        directory = directory if directory.is_absolute() else self.directory
        wanted = [spec["entry"], spec["code"]["root"], spec["environment"]["python"]]
        cached = json.dumps([*wanted, str(directory)])
        if cached not in self.entries:
            own = Problems()
            root = Path(wanted[1]) if wanted[1] else None
            located = None
            if not problems.under("entry"):
                located = entry.locate(wanted[0], directory, root, wanted[2], tree, own)
            if located is not None:
                found = entry.code_root(root, self.directory, located, tree, own)
                if self.code_root not in (None, found):
                    own.at(
                        tree,
                        ("entry",),
                        f"the runs of a sweep freeze one code, found {self.code_root} and {found}",
                        "set code.root to a directory that holds both",
                    )
                self.code_root = self.code_root or found
            self.entries[cached] = (located, tuple(own.found))
        located, mistakes = self.entries[cached]
        for problem in mistakes:
            problems.add(problem)
        return located


def gathered(reports: list[tuple[str, list[Problem]]], limit: int = 5) -> list[Problem]:
    """The problems of all runs, each once, saying in which runs when not in all."""
    labels: dict[Problem, list[str]] = {}
    for label, problems in reports:
        for problem in problems:
            labels.setdefault(problem, []).append(label)
    found = []
    shown: dict[tuple[str, str], int] = {}
    for problem, where in labels.items():
        place = (problem.file, problem.key)
        shown[place] = shown.get(place, 0) + 1
        if shown[place] > limit:
            continue
        if len(where) < len(reports):
            message = f"{problem.message} [in {listed(where, 1)}]"
            problem = dataclasses.replace(problem, message=message)
        found.append(problem)
    return found


def _swept(option: Option, data: dict[str, Any]) -> Any:
    swept = option.swept
    if isinstance(swept, (dict, list)):
        refers = "${" in json.dumps(swept)
    else:
        refers = isinstance(swept, str) and "${" in swept
    return get_at(data, option.key) if refers else swept


def _check_root(root: Path) -> None:
    text = str(root)
    if any(ord(character) < 32 or character in '\\:"' for character in text):
        raise UsageError(
            f"the root {text!r} cannot be used: it holds a quote, colon, backslash or line break",
            hint="choose another with --root or HPCRUN_ROOT",
        )

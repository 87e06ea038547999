"""Compiles a spec: composes, expands the sweep, resolves and checks runs."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence, Set
from pathlib import Path
from typing import Any, NamedTuple

from hpcrun.compile import chain, identity, run_notes
from hpcrun.compile.freeze import Compiled, CompiledRun, Prerequisite
from hpcrun.compile.run_template import RunTemplate, RunTemplates
from hpcrun.compile.source.interpolate import interpolate_one, variables_read
from hpcrun.compile.source.marked_tree import Key, Reporter, SourceMark, Tree, dotted, get_at
from hpcrun.compile.source.problems import Problems, kind_of
from hpcrun.compile.spec import compose, misreadings, profile, schema
from hpcrun.compile.spec.short_keys import ShortKeys, has_key
from hpcrun.compile.spec.spec_text import TypedSpec
from hpcrun.compile.sweep import late_values
from hpcrun.compile.sweep.expansion import Expansion
from hpcrun.compile.sweep.point import Assignment, KeyExists, Point, keys_of, label, short_names
from hpcrun.compile.sweep.references import has_interpolation, interpolations, overlap, referred
from hpcrun.compile.sweep.resolver import Resolver
from hpcrun.compile.sweep.search_space import Space
from hpcrun.compile.target import command_line, deepspeed
from hpcrun.errors import Problem, UsageError
from hpcrun.host import expand_home
from hpcrun.policy import secret_names
from hpcrun.state import permissions
from hpcrun.state.spec.cluster_profile import Profile
from hpcrun.state.spec.executors import Executor
from hpcrun.state.spec.experiment import Spec
from hpcrun.state.spec.sweep_block import Sweep
from hpcrun.text import listed

# Points with mistakes, after which no more are looked for.
_ENOUGH = 500
_MOST_AT_ONE_KEY = 5


def compile_spec(
    spec: Path | str | TypedSpec,
    overrides: Sequence[str] = (),
    sweeps: Sequence[str] = (),
    *,
    root: Path | None = None,
) -> Compiled:
    """Read, check and resolve a spec, without writing anything or asking a cluster.

    ``spec`` is a path, the name of an experiment that ships, or made of a command line;
    ``overrides`` are ``key=value`` and ``+key=value``, ``sweeps`` ``key=a,b``; ``root`` is the
    directory of experiments, None for the profile's. Raises SpecError with all problems that were
    found, UsageError if there is no such spec.
    """
    text = None
    if isinstance(spec, TypedSpec):
        path, shown, text = spec.path, str(spec), spec.text
    else:
        path, shown = compose.find_spec(spec)
    try:
        with variables_read() as variables:
            return _Compiler(path, shown, variables, text).compile(overrides, sweeps, root)
    except RecursionError:
        raise UsageError(f"{shown}: the spec is nested too deeply") from None


def compile_chain(
    spec: Path | str | TypedSpec,
    overrides: Sequence[str],
    sweeps: Sequence[str],
    *,
    root: Path | None,
) -> list[Compiled]:
    """Compile a spec and those that it depends on, each after its own dependencies; it comes last.

    Of the overrides, ``cluster=`` applies to all of them. Raises what `compile_spec` does, and
    UsageError if they do not go together.
    """
    last = compile_spec(spec, overrides, sweeps, root=root)
    if not last.prerequisites:
        return [last]
    shared = [override for override in overrides if override.startswith("cluster=")]
    return [*chain.before(last, lambda path: compile_spec(path, shared, root=root)), last]


def default_root(cluster: dict[str, Any]) -> Path:
    """Return the directory of experiments that a profile names, for lack of a --root."""
    return expand_home(cluster["root"]).absolute()


class _Swept(NamedTuple):
    """The points of a sweep or search and its limits; by default one point without values."""

    points: Sequence[Point] = ((),)
    repeats: tuple[str, ...] = ()
    max_parallel: int | None = None
    search: dict[str, Any] | None = None
    space: Space | None = None


class _Compiler:
    """One compilation; holds what its steps share."""

    def __init__(self, path: Path, shown: str, variables: Set[str], text: str | None) -> None:
        self.path, self.shown, self.variables, self.text = path, shown, variables, text
        self.directory = path.parent
        self.problems = Problems()
        self.has_default_cluster = False
        self.files: dict[str, Tree | None] = {}

    def compile(
        self, overrides: Sequence[str], sweeps: Sequence[str], root: Path | None
    ) -> Compiled:
        problems = self.problems
        tree, known, applied = self._compose(overrides)
        if "depends_on" in tree.data:
            tree.data["depends_on"] = chain.spelled_out(tree.data["depends_on"])
        loaded = self._profile(tree)
        site = loaded.data if loaded is not None else schema.defaults(Profile)
        if loaded is not None:
            tree = tree.over(loaded.resources)
            tree.data["cluster"] = loaded.data["name"]
        report = Reporter(tree, problems)
        block = tree.data.pop("sweep", None)
        base = tree.over(Tree(schema.defaults(Spec)))
        del base.data["sweep"]
        base.marks = {key: mark for key, mark in base.marks.items() if key[:1] != ("sweep",)}

        def exists(key: Key, mark: SourceMark) -> bool:
            return compose.check_exists(key, known, problems, mark)

        resolve = Resolver(base, self._with_deepspeed)
        swept = _Swept()
        if block or sweeps:
            swept = self._expand(block or {}, sweeps, ShortKeys(known), report, exists, resolve)
        points, search, space = swept.points, swept.search, swept.space
        if any(points):
            if not problems:
                conditions = {key: one.when for key, one in space.keys.items()} if space else None
                misreadings.check_swept_overrides(applied, points, problems, conditions=conditions)
            misreadings.note_swept(points, known, problems)
        misreadings.note_values(base, problems)
        prerequisites: tuple[Prerequisite, ...] = ()
        if base.data["depends_on"] or any(points):
            prerequisites = chain.prerequisites(Reporter(base, problems), points)
        extendable_keys: tuple[Key, ...] = ()
        if base.data["extendable"]:
            whole = Reporter(self._with_deepspeed(base, Problems()), problems)
            extendable_keys = identity.extendable(whole, points, exists)
        arrived = _referred(base, points)
        is_slurm = loaded is None or Executor.of(loaded.data).queues
        templates = RunTemplates(self.directory, site, arrived, is_slurm=is_slurm)
        runs = self._runs(resolve, points, templates)
        problems.check()
        if space is not None and search is not None:

            def template_of(point: Point) -> RunTemplate:
                return templates.of(resolve(point, problems))

            runs = late_values.freeze(runs, space, search, resolve, template_of, report)
            problems.check()
        assert loaded is not None
        code_root = templates.code_root
        assert code_root is not None
        place = Path(os.path.realpath(root or default_root(loaded.data)))
        _check_root(place)
        inside = self.directory.is_relative_to(code_root)
        sources = tuple(dict.fromkeys(problems.files))
        return Compiled(
            name=runs[0].spec["name"],
            root=place,
            spec_file=str(self.path),
            code_root=str(code_root),
            directory=os.path.relpath(self.directory, code_root) if inside else ".",
            cluster=loaded.data,
            max_parallel=swept.max_parallel,
            has_default_cluster=self.has_default_cluster,
            repeats=swept.repeats,
            extendable=extendable_keys,
            prerequisites=prerequisites,
            sources=sources,
            notes=(
                *compose.passed_over(self.shown),
                *loaded.notes,
                *_note_on_variables((*sources, *problems.data_files), self.variables),
                *_secrets(loaded.data, runs),
                *templates.notes,
                *problems.notes,
                *run_notes.unread(runs, arrived),
                *(run_notes.started_alike(runs) if runs[1:] else ()),
                *(run_notes.trained_by_deepspeed(runs) if any(points) else ()),
                *run_notes.not_compared(runs),
                *run_notes.lists_of_words(runs, str(code_root)),
                *run_notes.written_outside(runs),
                *run_notes.kept_from_program(runs, self.directory),
                *(() if is_slurm else run_notes.on_this_machine(loaded.data["name"], runs)),
            ),
            doubts=tuple(templates.doubts),
            names_array_size=loaded.names_array_size,
            text=self.text,
            no_flags=_no_flags(runs, arrived),
            runs=tuple(runs),
        )

    def _expand(
        self,
        block: Any,
        sweeps: Sequence[str],
        keys: ShortKeys,
        report: Reporter,
        exists: KeyExists,
        resolve: Resolver,
    ) -> _Swept:
        """Expand the spec's ``sweep`` and those of the command line; report what is wrong."""
        block = schema.SchemaChecker(report, Spec).block(block, Sweep, ("sweep",))
        report.at_least("sweep.max_parallel", block["max_parallel"], 1)
        block = keys.spell_out(block, report)
        expansion = Expansion(report, exists, resolve, keys.full)
        search = block.pop("search")
        if search is None:
            points = expansion.expand(block, sweeps, self.directory)
            return _Swept(points, expansion.repeats, block["max_parallel"])
        space = expansion.space(search, block, sweeps)
        points = [*space.samples] or [()]
        return _Swept(points, expansion.repeats, search["parallel"], search, space)

    def _compose(self, overrides: Sequence[str]) -> tuple[Tree, Tree, dict[Key, compose.Override]]:
        """Return the spec with overrides, the same with all keys that may be overridden, and them.

        The overrides are those without a problem, by their full keys.
        """
        plain = compose.read(self.path, self.shown, self.problems, text=self.text)
        if self.problems.unreadable:
            self.problems.check()
        mark = SourceMark(self.shown, None, self.directory)
        tree = plain.over(Tree({"name": self.path.stem}, {("name",): mark}))
        given = compose.parse_overrides(overrides, self.directory, self.problems)
        chosen = functools.reduce(lambda below, one: one.value.over(below), given, tree)
        known = self._with_deepspeed(tree, Problems(), chosen)
        applied: dict[Key, compose.Override] = {}
        for one in given:
            override, exists = one, has_key(known, one.key)
            if one.adds:
                exists = compose.check_added(one, known, self.problems)
            elif not exists:
                override = self._in_full(one, known)
                exists = compose.check_exists(override.key, known, self.problems)
            if not exists:
                continue
            if misreadings.check_override(override, known, applied, self.problems):
                applied[override.key] = override
                tree, known = override.value.over(tree), override.value.over(known)
        return tree, known, applied

    def _in_full(self, override: compose.Override, known: Tree) -> compose.Override:
        """Return an override with its full key, and note what a short one was read as."""
        full = ShortKeys(known).full(override.key)
        if full == override.key:
            return override
        self.problems.notes.append(f"{override.typed}: the key is read as {dotted(full)}")
        return override.at(full)

    def _profile(self, tree: Tree) -> profile.LoadedProfile | None:
        name = interpolate_one(tree, ("cluster",), self.problems)
        if self.problems.under("cluster"):
            return None
        if name is None:
            self.has_default_cluster = True
            name = profile.default_name()
            if name == profile.LOCAL:
                self.problems.notes.append(
                    "cluster: local, which is this machine, as there is no sbatch on PATH; "
                    "cluster=NAME chooses another profile"
                )
        report = Reporter(tree, self.problems)
        if not isinstance(name, str):
            report.at("cluster", f"found {kind_of(name)}; accepted is the name of a profile")
            return None
        return profile.load(name, self.directory, report.mark("cluster"), self.problems)

    def _with_deepspeed(self, tree: Tree, problems: Problems, chosen: Tree | None = None) -> Tree:
        """Return the tree over the file that its (or ``chosen``'s) ``deepspeed_config`` names."""
        chosen = chosen or tree
        value = interpolate_one(chosen, ("deepspeed_config",), problems)
        if value is None:
            return tree
        mark = chosen.mark(("deepspeed_config",))
        name = json.dumps([value, str(mark.directory), mark.line])
        if name not in self.files:
            self.files[name] = deepspeed.read_file(value, Reporter(chosen, self.problems))
        file = self.files[name]
        return tree.over(file.below(("deepspeed",))) if file is not None else tree

    def _runs(
        self, resolve: Resolver, points: Sequence[Point], templates: RunTemplates
    ) -> list[CompiledRun]:
        names = short_names(points)
        runs: dict[str, CompiledRun] = {}
        reports = []
        wrong = 0
        for point in points:
            problems = Problems()
            # Only points that share a structure are worth finding it.
            resolved = resolve(point, problems) if point else resolve.slowly(point, problems)
            swept = {
                dotted(one.key): _swept_value(one, resolved.data) for one in point if not one.is_set
            }
            name = label(swept, names)
            run = None
            if resolved.data or not problems:
                run = templates.of(resolved).run(resolved, swept, name, problems)
            if run is not None:
                other, first = runs.setdefault(run.identity, run), next(iter(runs.values()))
                report = Reporter(resolved.tree, problems)
                if other.spec != run.spec:
                    found = "two runs compute the same, and differ in where they run or are saved"
                    report.at("sweep", found, "leave one of them out")
                if run is not first:
                    _check_same(run, first, report)
            reports.append((name, problems.found))
            wrong += bool(problems or self.problems)
            if wrong == _ENOUGH:
                break
        self.problems.add(*gather(reports))
        return list(runs.values())


def _referred(base: Tree, points: Sequence[Point]) -> frozenset[Key]:
    """Return the keys of ``config`` that have arrived where a command refers to them."""
    places: tuple[Key, ...] = (("entry",), ("args",), ("environment", "variables"))
    texts = [one for key in places for one in interpolations(get_at(base.data, key), key)]
    inside = {one for one in keys_of(points) if any(overlap(one, key) for key in places)}
    for one in (one for point in points for one in point if one.key in inside) if inside else ():
        texts += interpolations(one.value, one.key)
    return referred(texts, "config")


def _no_flags(runs: Sequence[CompiledRun], arrived: Set[Key]) -> tuple[str, ...]:
    """Return the full keys of ``config`` that are no flags of the commands among the runs."""
    is_command = any(run.entry.kind == "command" for run in runs)
    has_flags = any(run.spec["flags"] != command_line.NO_FLAGS for run in runs)
    return tuple(sorted(map(dotted, arrived))) if is_command and has_flags else ()


def _check_same(run: CompiledRun, first: CompiledRun, report: Reporter) -> None:
    """Report a difference between runs in what an experiment has only one of."""
    for key, what in (("name",), "name"), (("environment", "python"), "Python"):
        one, other = get_at(first.spec, key), get_at(run.spec, key)
        if one != other:
            found = f"an experiment has one {what}, and a sweep makes it {one!r} and {other!r}"
            report.at(key, found)


def _note_on_variables(sources: Sequence[Path], variables: Set[str]) -> Iterator[str]:
    """Yield a note of what another user's file has put into the plan of this environment."""
    names = sorted(variables - {"HOME"})  # the default root has it, and every path tells it
    whose = permissions.foreign(sources) if names else None
    if whose is not None:
        yield (
            f"the values of {listed(names, 8)} in your environment are in the plan, where "
            f"everybody who may read the experiment reads them: {whose}"
        )


def _secrets(cluster: dict[str, Any], runs: Sequence[CompiledRun]) -> Iterator[str]:
    """Yield a note that names what looks like a secret in the specs and the profile."""
    found = [*secret_names.places(runs[0].spec), *secret_names.places(cluster, "cluster")]
    # Runs share what is not swept.
    swept = (pair for run in runs for pair in run.swept.items())
    found += [one for key, value in swept for one in secret_names.places(value, key)]
    if found:
        yield (
            f"{listed([*dict.fromkeys(found)], 8)}: this looks like a secret, and it is kept where "
            "everybody who may read the experiment reads it; put it into a file of mode 0600 and "
            "name that in environment.secrets_file"
        )


def gather(reports: list[tuple[str, list[Problem]]]) -> list[Problem]:
    """Return the problems of all runs, each once, with a run's label if not all runs have it."""
    labels: dict[Problem, list[str]] = {}
    for name, problems in reports:
        for problem in problems:
            labels.setdefault(problem, []).append(name)
    found = []
    shown: Counter[tuple[str, str]] = Counter()
    for problem, where in labels.items():
        shown[problem.file, problem.key] += 1
        if shown[problem.file, problem.key] > _MOST_AT_ONE_KEY:
            continue
        if len(where) < len(reports):
            message = f"{problem.message} [in {listed(where, 1)}]"
            problem = dataclasses.replace(problem, message=message)
        found.append(problem)
    return found


def _swept_value(one: Assignment, data: dict[str, Any]) -> Any:
    return get_at(data, one.key) if has_interpolation(one.swept) else one.swept


def _check_root(root: Path) -> None:
    text = str(root)
    if any(ord(character) < 32 or character in '\\:"' for character in text):
        raise UsageError(
            f"the root {text!r} cannot be used: it holds a quote, colon, backslash or line break",
            hint="choose another with --root or HPCRUN_ROOT",
        )

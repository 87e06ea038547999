"""A run without its ``config``, checked once for many runs of a sweep."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from hpcrun.compile import identity
from hpcrun.compile.freeze import CompiledRun
from hpcrun.compile.source.marked_tree import Key, Reporter
from hpcrun.compile.source.problems import Problems
from hpcrun.compile.spec import checks, objective, schema
from hpcrun.compile.sweep.resolver import Resolved
from hpcrun.compile.target import (
    deepspeed,
    engine_settings,
    entry,
    framework_detection,
    learning_rate,
    optimizers,
    packing,
    parallel_layout,
    recovery_checks,
    role_layout,
    slurm_options,
)
from hpcrun.compile.target.draft import SpecDraft
from hpcrun.errors import Problem, UsageError
from hpcrun.policy import batch, frameworks
from hpcrun.shared_dataclass import dataclass, field
from hpcrun.state.role_plan import ROLES
from hpcrun.state.spec.experiment import Spec
from hpcrun.state.spec.recovery_block import Recovery
from hpcrun.state.spec.run_blocks import Optimization
from hpcrun.text import size

MOST_TEXT = 500_000_000
_SHAPE = ("resources.nodes", "resources.ntasks_per_node", "resources.gpus_per_node")


@dataclass
class RunTemplate:
    """A checked spec that is completed by the ``config`` of each run."""

    spec: dict[str, Any]
    """The spec with the default ``config``; its other blocks are shared between runs: read-only."""
    # The entry and the directory that is frozen; None after a problem.
    located: entry.LocatedEntry | None
    root: Path | None
    framework: str
    """The framework that ranks are prepared for."""
    recipe: str | None
    """The recipe by which the program resumes, if that was detected."""
    directory: Path
    """The directory of the spec's file."""
    problems: list[Problem]
    """The problems of the spec, whatever its ``config``."""
    count: Callable[[int], object]
    """Takes the length of what each run computes."""
    referred: Collection[Key] = ()
    """The keys of ``config`` that a command refers to."""
    roles: role_layout.Located = field(default_factory=dict)
    """The programs of the roles beside the main one."""
    _digest: identity.Digester | None = None

    def run(
        self, resolved: Resolved, swept: dict[str, Any], label: str, problems: Problems
    ) -> CompiledRun | None:
        """Return the run of a point; None after a problem."""
        problems.add(*self.problems)
        spec, report = self.spec, Reporter(resolved.tree, problems)
        config = resolved.data.get("config")
        if type(config) is not dict:
            data = {"config": config} if "config" in resolved.data else {}
            config = schema.SchemaChecker(report, Spec).block(data, Spec)["config"]
            assert isinstance(config, dict)
        if self.located is None or self.root is None:
            return None
        others: dict[str, Any] = {}
        if ROLES in spec:
            others = role_layout.freeze(spec, self.roles, self.root, config, report)
            config = role_layout.config_of_main(spec, config)
            spec = {**spec, ROLES: others}
        found, argv = entry.finish(
            self.located,
            self.root,
            spec,
            config,
            report,
            self.referred,
            self.framework,
            self.recipe,
        )
        if problems:
            return None
        if self._digest is None:
            self._digest = identity.digester(found, self.root, self.directory, spec, self.count)
        computed = role_layout.computed(others, self.root, self.directory) if others else {}
        digest = self._digest(argv, config, swept, computed)
        return CompiledRun(digest, label, swept, found, {**spec, "config": config})


class RunTemplates:
    """The templates of a spec, each made for the first point that needs it."""

    def __init__(
        self, directory: Path, site: dict[str, Any], referred: Collection[Key], *, is_slurm: bool
    ) -> None:
        """``directory`` is that of the spec's file, ``site`` the data of the cluster's profile; a
        command refers to the keys ``referred``."""
        self._directory, self._site, self._referred = directory, site, referred
        self._is_slurm = is_slurm
        self._templates: dict[str, RunTemplate] = {}
        self._entries: dict[str, tuple[entry.LocatedEntry | None, list[Problem]]] = {}
        self.code_root: Path | None = None
        """The directory that is frozen, once an entry was found."""
        self.notes: dict[str, None] = {}
        """Messages for the user about specs that are right, each a key."""
        self.doubts: dict[str, None] = {}
        """What a person is asked about before it is submitted."""
        self._text = 0

    def of(self, resolved: Resolved) -> RunTemplate:
        """Return the template of a point."""
        name = resolved.elsewhere
        if name is None:
            return self._make(resolved)
        if name not in self._templates:
            self._templates[name] = self._make(resolved)
        return self._templates[name]

    def _make(self, resolved: Resolved) -> RunTemplate:
        problems, note = Problems(), self.notes.setdefault
        report = Reporter(resolved.tree, problems)
        data = {name: resolved.data[name] for name in resolved.data if name != "config"}
        spec = schema.SchemaChecker(report, Spec).block(data, Spec)
        if not self._is_slurm:
            slurm_options.settle_here(spec["resources"], note)
        below_entry = role_layout.take_place(spec, report) if spec[ROLES] else report
        checks.check(spec, self._site["limits"], report)
        checks.settle_paths(spec, self._directory, report)
        # A profile says it for the runs that have GPUs.
        wanted, of_site = spec["resources"], self._site["resources"]["gpu_type"]
        if not (wanted["gpus_per_node"] or spec[ROLES]) and wanted["gpu_type"] != of_site:
            report.note_alone("resources.gpu_type", "resources.gpus_per_node")
        located = self._locate(spec, below_entry)
        if self.code_root is not None:
            checks.check_in_code(spec["code"], self._directory, self.code_root, report)
        kind = located.kind if located else None
        if spec["objective"] is not None or spec["checkpoint"]["keep_best"]:
            objective.settle(spec, report, note)
        framework, recipe = self._framework(located, spec, report)
        draft = SpecDraft(spec, kind, framework, report, note)
        self._settle_engine(draft, resolved.data.get("deepspeed_config"))
        if self._is_slurm and not frameworks.of(framework).one_per_run:
            slurm_options.tell_cpus(spec, note)
        roles = role_layout.settle(spec, self._locate, report) if spec[ROLES] else {}
        if spec["resources"]["pack"] is not None:
            packing.check(draft, self._site["sbatch"])
        if self._is_slurm and not problems.under("resources", ROLES):
            slurm_options.tell_whole_nodes(spec, note)
        if roles:
            checks.check_limits(spec["resources"], self._site["limits"], report.below("resources"))
        self.notes.update(dict.fromkeys(problems.notes))
        left_out = ("extends", "sweep", *(() if spec[ROLES] else (ROLES,)))
        spec = {name: spec[name] for name in spec if name not in left_out}
        return RunTemplate(
            spec=spec,
            located=located,
            root=self.code_root,
            framework=framework,
            recipe=recipe,
            directory=self._directory,
            problems=problems.found,
            count=self._count,
            referred=self._referred,
            roles=roles,
        )

    def _settle_engine(self, draft: SpecDraft, file: Any) -> None:
        """Check and complete the DeepSpeed configuration, partly of a file, and what follows."""
        spec, ranks = draft.spec, None
        of_file = deepspeed.keys_of_file(file, draft.report)
        if spec["deepspeed"]:
            spec["deepspeed"] = deepspeed.without_nulls(spec["deepspeed"], of_file)
            deepspeed.check(draft)
            optimizers.check(draft)
        if spec["precision"] != batch.AUTO:
            engine_settings.fill_in(draft)
        if spec["resources"]["gpu_type"] is not None:
            engine_settings.check_gpu(draft)
        is_shared = spec["deepspeed"] or spec["parallel"] or spec["model_parallel_size"] is not None
        if is_shared and not draft.report.problems.under(*_SHAPE):
            # Also where one process of a node has all its GPUs, and starts the others.
            per_node = draft.gpus or spec["resources"]["ntasks_per_node"] or 1
            ranks = parallel_layout.data_parallel(draft, per_node)
            if ranks is not None:
                spec["deepspeed"] = deepspeed.solve_batch(draft, ranks, of_file)
                parallel_layout.tell(draft, per_node)
        if spec["deepspeed"]:
            engine_settings.check(draft, ranks)
        if spec["deepspeed"] or spec["recovery"] != vars(Recovery()):
            recovery_checks.check(draft)
        if spec["optimization"] != vars(Optimization()):
            learning_rate.settle(draft)

    def _framework(
        self, located: entry.LocatedEntry | None, spec: dict[str, Any], report: Reporter
    ) -> tuple[str, str | None]:
        """Return the framework and the recipe that was detected.

        Sets the tasks of a node where the framework decides them.
        """
        name: str = spec["framework"]
        if located is None or report.problems.under("framework", *_SHAPE):
            return name, None
        directory = report.mark("entry").directory
        directory = directory if directory.is_absolute() else self._directory
        unused = framework_detection.unused_progress(located, spec, directory)
        if name == frameworks.AUTO:
            name, note = framework_detection.detect(located, spec, directory)
            if name == frameworks.AUTO and note is None:
                doubt = framework_detection.lone(located, spec, directory)
                self.doubts.update(dict.fromkeys(filter(None, (doubt,))))
        else:
            note = framework_detection.doubt(name, located, spec["resources"])
        saves = framework_detection.unused_checkpoint(located, spec, directory)
        self.notes.update(dict.fromkeys(filter(None, (note, unused, saves))))
        framework, wanted = frameworks.of(name), spec["resources"]
        framework_detection.check(name, located.kind, wanted, report, is_slurm=self._is_slurm)
        if wanted["gpus_per_node"] > 1 and (
            framework.one_per_node or (framework.one_per_run and not wanted["ntasks_per_node"])
        ):
            wanted["ntasks_per_node"] = 1
        return name, framework_detection.recipe(located, spec, directory)

    def _count(self, length: int) -> None:
        self._text += length
        if self._text > MOST_TEXT:
            raise UsageError(
                f"the runs of this sweep have more than {size(MOST_TEXT)} of configuration in all",
                hint="keep long values in a file that the program reads, or sweep fewer",
            )

    def _locate(self, spec: dict[str, Any], report: Reporter) -> entry.LocatedEntry | None:
        directory = report.mark("entry").directory
        directory = directory if directory.is_absolute() else self._directory
        wanted, python = spec["entry"], spec["environment"]["python"]
        root = Path(spec["code"]["root"]) if spec["code"]["root"] else None
        name = json.dumps([wanted, spec["code"]["root"], python, str(directory), report.key])
        if name not in self._entries:
            own = Reporter(report.tree, Problems(), report.key)
            located = None
            if not report.problems.under("entry"):
                located = entry.locate(wanted, directory, root, python, own)
            if located is not None:
                found = entry.code_root(root, self._directory, located, own)
                if self.code_root not in (None, found):
                    roots = f"{self.code_root} and {found}"
                    message = f"the runs of a sweep freeze one code, found {roots}"
                    own.at("entry", message, "set code.root to a directory that holds both")
                self.code_root = self.code_root or found
            self._entries[name] = (located, own.problems.found)
        located, mistakes = self._entries[name]
        report.problems.add(*mistakes)
        return located

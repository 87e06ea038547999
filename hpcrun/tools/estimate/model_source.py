"""Where a run's model comes from: a number, a function of the user's, or Hugging Face's config."""

from __future__ import annotations

import ast
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hpcrun
from hpcrun import ask_python
from hpcrun.errors import UsageError
from hpcrun.slurm.parse import parse_duration
from hpcrun.state import permissions
from hpcrun.state.plan import Plan, RunPlan
from hpcrun.state.spec.blocks import early, is_late
from hpcrun.state.spec.parallel_block import divided_axes
from hpcrun.submission.python_probe import Unchecked, in_job_environment, probe
from hpcrun.text import duration, one_line, shortened
from hpcrun.tools.estimate import model_facts, model_program, training_setup
from hpcrun.tools.estimate.model_facts import ModelFacts
from hpcrun.tools.estimate.model_program import BUILD

# Keys of ``config`` that name a model of Hugging Face, and those that say a sample's length.
_PRETRAINED_KEYS = """
model_name_or_path pretrained_model_name_or_path model_name model_id base_model model_path model
"""
_LENGTH_KEYS = """
sequence_length seq_length seq_len max_seq_length max_seq_len max_length context context_length
block_size cutoff_len model_max_length
"""
# Models of one sweep that are counted: each is a start of the job's Python.
_MOST_MODELS = 24
_MOST_PARSED = 2_000_000
# The library of the Python that counts, and what of hpcrun needs it.
_NEEDS = {"torch": "a function entry"}

HOW = (
    "give the number (--parameters 7.5B, or estimate.parameters), or name in estimate.model a "
    f"function that returns the model, such as `def {BUILD}(config)`, or a Hugging Face model"
)
TIMEOUT = 300.0
_DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
_GPUS = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
GIVE = "give the number: --parameters 7.5B, or estimate.parameters in the spec"


@dataclass
class _Answer:
    """An answer, and the values of ``config`` that it is the answer for."""

    question: str
    read: dict[str, Any]
    facts: ModelFacts | UsageError
    """The model, or why it could not be counted."""


@dataclass
class ModelSource:
    """Finds the models of a plan's runs; runs that have the same model share one count."""

    plan: Plan
    sources: tuple[Path, ...]
    """The YAML files of the spec and the profile."""
    parameters: str | None
    """``--parameters``."""
    _answers: list[_Answer] = field(default_factory=list)
    _pythons: dict[str, list[str]] = field(default_factory=dict)

    def of(self, run: RunPlan, precision: str) -> ModelFacts:
        """Return a run's model; raise UsageError that says what to type if it cannot be counted."""
        block = run.spec.get("estimate") or {}
        given = {name: block.get(name) for name in model_facts.SHAPE}
        given["sequence_length"] = given["sequence_length"] or sequence_length(run.config)
        for value, key in (
            (self.parameters, "--parameters"),
            (block.get("parameters"), "estimate.parameters"),
        ):
            if value is not None:
                count = model_facts.parameter_count(value, key)
                return model_facts.of_number(count, f"given by {key}", given)
        question = {**self._question(run, block, given), **_division(run)}
        return self._count(run, question, precision, given)

    def same_model(self, run: RunPlan) -> Callable[[RunPlan], bool]:
        """Return a test of other runs: whether they train the same model, as far as is known."""
        read = next(
            (
                one.read
                for one in self._answers
                if isinstance(one.facts, ModelFacts) and _agrees(one, run) and one.read
            ),
            None,
        )
        whole = without_seeds(run.config)

        def test(other: RunPlan) -> bool:
            names = ("kind", "module", "function", "file")
            if any(getattr(other.entry, one) != getattr(run.entry, one) for one in names):
                return False
            if read is None:
                return without_seeds(other.config) == whole
            return all(other.config.get(name) == run.config.get(name) for name in read)

        return test

    def _question(
        self, run: RunPlan, block: Mapping[str, Any], given: Mapping[str, Any]
    ) -> dict[str, Any]:
        directory = Path(self.plan.code_root, self.plan.directory)
        named = block.get("model")
        if named is not None and ":" in named and not named.startswith("/"):
            return self._function(named, directory)
        if named is not None:
            return _pretrained(named, directory, given)
        entry = run.entry
        if entry.kind == "function" and entry.module and self._has_build_model(run):
            file = entry.file and str(Path(self.plan.code_root, entry.file))
            root = Path(self.plan.code_root, entry.import_root or ".")
            found = module_of(file, entry.module)
            return {**found, "paths": [str(root), *found["paths"]]}
        if found_name := pretrained_name(run.config, directory):
            return _pretrained(found_name, directory, given)
        raise UsageError("nothing says how many parameters the model has", hint=HOW)

    def _has_build_model(self, run: RunPlan) -> bool:
        """Look for the function without importing anything."""
        entry = run.entry
        if entry.file is None:
            return True  # installed: its Python says
        try:
            file = Path(self.plan.code_root, entry.file)
            if file.stat().st_size > _MOST_PARSED:
                return True
            tree = ast.parse(file.read_bytes())
        except (OSError, ValueError, SyntaxError, RecursionError):
            return False
        names = {
            name.asname or name.name
            for node in tree.body
            if isinstance(node, (ast.Import, ast.ImportFrom))
            for name in node.names
        }
        names |= {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        return BUILD in names

    def _function(self, named: str, directory: Path) -> dict[str, Any]:
        module, _, function = named.rpartition(":")
        if not module or not function.isidentifier():
            raise UsageError(
                f"estimate.model: found {named!r}; accepted is package.module:function, "
                "file.py:function, or a Hugging Face name or directory",
                hint=HOW,
            )
        paths = [str(directory), self.plan.code_root]
        if module.endswith(".py"):
            file = directory / module
            if not file.is_file():
                raise UsageError(f"estimate.model: there is no file {file}", hint=HOW)
            found = module_of(str(file), file.stem)
            return {**found, "function": function, "paths": [*found["paths"], *paths]}
        return {**module_of(None, module), "function": function, "paths": paths}

    def _count(
        self, run: RunPlan, question: dict[str, Any], precision: str, given: Mapping[str, Any]
    ) -> ModelFacts:
        key = json.dumps([question, precision, run.spec["environment"]], default=str)
        for known in self._answers:
            if known.question == key and _agrees(known, run):
                if isinstance(known.facts, UsageError):
                    raise known.facts
                return known.facts
        if len(self._answers) >= _MOST_MODELS:
            raise UsageError(
                f"{_MOST_MODELS} models were counted, and this run has another one",
                hint="estimate a part of the sweep, or " + HOW,
            )
        # Keys of a Hugging Face model say all; a function says which it reads.
        read: dict[str, Any] = {} if "pretrained" in question else dict(run.config)
        try:
            answer = self._ask(run, question, precision)
            if "pretrained" not in question and isinstance(answer.get("read"), list):
                read = {str(name): run.config.get(str(name)) for name in answer["read"]}
            facts = model_facts.of_answer(answer, given)
        except UsageError as error:
            self._answers.append(_Answer(key, read, error))
            raise
        except ValueError as error:
            raise UsageError(
                f"the program that counts the model gave a wrong answer: {one_line(str(error))}",
                hint=HOW,
            ) from None
        self._answers.append(_Answer(key, read, facts))
        return facts

    def _ask(self, run: RunPlan, question: dict[str, Any], precision: str) -> dict[str, Any]:
        if (whose := permissions.foreign(self.sources)) is not None:
            raise _not_counted(f"that runs the spec's code here: {whose}")
        if run.container is not None:
            raise _not_counted("the Python that has torch is in a container")
        own, cluster = run.environment, self.plan.cluster
        setup = [*cluster["setup"], *own.setup]
        variables = {**cluster["variables"], **early(own.variables)}
        key = json.dumps([own.python, setup, variables])
        if key not in self._pythons:
            # The probe starts no Python of another user, and says what this one lacks.
            try:
                found = probe(str(own.python), setup=setup, variables=variables, needs=_NEEDS)
            except Unchecked as why:
                raise _not_counted(f"{own.python} is not started: {why}") from None
            self._pythons[key] = [found.executable]
        block = run.spec.get("estimate") or {}
        seconds = parse_duration(str(block.get("timeout") or "")) or TIMEOUT
        return count_model(
            self._pythons[key],
            {**question, "config": run.config},
            precision=precision,
            setup=setup,
            variables=variables,
            timeout=seconds,
        )


def _not_counted(why: str) -> UsageError:
    hint = "give the number: --parameters 7.5B"
    return UsageError(f"the model is not counted, as {why}", hint=hint)


def sequence_length(config: Mapping[str, Any]) -> int | None:
    """Return the tokens of a sample that a ``config`` tells, at its top or one level below."""
    blocks = [config, *(one for one in config.values() if isinstance(one, Mapping))]
    for block in blocks:
        for name in _LENGTH_KEYS.split():
            value = block.get(name)
            if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 10**8:
                return value
    return None


def pretrained_name(config: Mapping[str, Any], directory: Path) -> str | None:
    """Return the Hugging Face model that a ``config`` names; None without one."""
    for name in _PRETRAINED_KEYS.split():
        value = config.get(name)
        if not isinstance(value, str) or not value or is_late(value):
            continue
        if _local(value, directory) is not None or _is_hub_name(value):
            return value
    return None


def _local(name: str, directory: Path) -> Path | None:
    try:
        found = (directory / name).expanduser()
        return found if (found / "config.json").is_file() else None
    except (OSError, RuntimeError, ValueError):
        return None


def _is_hub_name(name: str) -> bool:
    owner, slash, rest = name.partition("/")
    return bool(slash and owner and rest and "/" not in rest and name[0] not in "./~")


def _pretrained(name: str, directory: Path, given: Mapping[str, Any]) -> dict[str, Any]:
    local = _local(name, directory)
    if local is None and not _is_hub_name(name) and ("/" in name or name.startswith(".")):
        raise UsageError(f"the model {name}: there is no {name}/config.json", hint=HOW)
    return {
        "pretrained": name if local is None else str(local),
        "sequence_length": given["sequence_length"],
    }


def _division(run: RunPlan) -> dict[str, Any]:
    """Return the part of a question that says how ranks divide the model, beyond its own plan."""
    found: dict[str, Any] = {}
    rules = training_setup.block(run.deepspeed, "tensor_parallel")
    if rules.keys() & {"partition_config", "preset_model"}:
        found["tensor_parallel"] = rules
    stages = divided_axes(run.spec.get("parallel")).get("pipeline", 1)
    if stages > 1:
        given = training_setup.block(run.deepspeed, "pipeline")
        found["pipeline"] = {
            "stages": stages,
            "partition": str(given.get("partition") or "best"),
            "interval": training_setup.whole(given.get("activation_checkpoint_interval")),
        }
    return found


def _agrees(known: _Answer, run: RunPlan) -> bool:
    return all(run.config.get(name) == value for name, value in known.read.items())


def without_seeds(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of ``config`` on which the memory of a run may depend."""
    others = ("seed", "lr", "learning_rate", "total_steps", "max_steps", "output_dir")
    return {name: value for name, value in config.items() if name not in others}


def count_model(
    python: Sequence[str],
    question: Mapping[str, Any],
    *,
    precision: str,
    setup: Sequence[str] = (),
    variables: Mapping[str, str] | None = None,
    timeout: float = TIMEOUT,
) -> dict[str, Any]:
    """Start ``python`` on the counting program, and return its answer.

    ``question`` has ``module``, ``file``, ``function`` and ``config``, or ``pretrained``. The
    job's ``setup`` lines of bash run first, and it gets the job's ``variables``. Raise UsageError
    if the model cannot be counted.
    """
    asked = {"function": None, "paths": [], "config": {}, **question, "dtype": _DTYPES[precision]}
    asked["hpcrun"] = str(Path(hpcrun.__file__).parent.parent)
    # As a file: the job's Python need not have hpcrun, nor may it find hpcrun's own modules.
    command = [*python, os.path.realpath(model_program.__file__)]
    # The meta device takes no GPU; the user's code, as it is imported, gets none either.
    own = {**(variables or {}), **dict.fromkeys(_GPUS, ""), "PYTHONDONTWRITEBYTECODE": "1"}
    argv, environment = in_job_environment(command, setup, own)
    try:
        found = ask_python.ask(
            argv,
            timeout=timeout,
            environment=environment,
            given=json.dumps(asked),
            mark=model_program.MARK,
        )
    except OSError as error:
        raise UsageError(f"environment.python: {python[0]}: {error.strerror}", hint=GIVE) from None
    if found.code is None:
        raise UsageError(
            f"the model was not made within {duration(timeout)}, and its process was ended",
            hint=f"{GIVE}; or more time, estimate.timeout",
        )
    if found.data is None:
        why = (
            f"the model was not made: its Python ended with code {found.code}{found.last_errors(3)}"
        )
    elif not isinstance(found.data, dict):
        why = "the program that counts the model gave no answer that can be read"
    elif "problem" in found.data:
        told = one_line(shortened(str(found.data["problem"]), 600))
        why = f"the model was not made: {told}"
    else:
        return found.data
    raise UsageError(why, hint=GIVE)


def module_of(file: str | None, module: str) -> dict[str, Any]:
    """Return the part of a question that names a module, in a file if it is in one."""
    return {"module": module, "file": file, "paths": [str(Path(file).parent)] if file else []}

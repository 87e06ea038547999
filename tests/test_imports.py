"""Imports point one way, and nothing slow is imported before it is needed.

The rules are those of docs/architecture.md, "Imports".
"""

from __future__ import annotations

import ast
import functools
import importlib.metadata
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from hpcrun import feature
from tests.support.needs_tool import needs_tool

if sys.version_info >= (3, 11):
    import tomllib
else:  # what mypy and pytest bring along on Python 3.10
    import tomli as tomllib

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "hpcrun"
# Modules at the top that every package may import.
BASE = {
    *(
        "activity",
        "ask_python",
        "errors",
        "bounded_json",
        "fields",
        "host",
        "mounts",
        "text",
        "resources",
        "shared_dataclass",
        "shared_look",
        "slurm_state",
        "owner_lock",
    ),
    *("command", "extensions", "feature", "gpu_catalogue", "python_packages"),
    "terminal",
}
# Package -> the packages that it may import, beside itself and the modules above. No circles.
MAY_IMPORT: dict[str, set[str]] = {
    "state": set(),
    "policy": {"state"},
    "slurm": {"policy", "state"},
    "container": {"state"},
    "run": {"container", "slurm", "policy", "state"},
    "compile": {"container", "slurm", "policy", "state"},
    "submission": {"container", "compile", "slurm", "policy", "state"},
    "site": {"slurm", "policy", "state"},
    "check": {"site", "submission", "compile", "slurm", "policy", "state"},
    "observe": {"submission", "slurm", "policy", "state"},
    # Where the ranks of a live run are stands in their launch file.
    "control": {"container", "run", "observe", "submission", "compile", "slurm", "policy", "state"},
    # It looks for the tools' folders, and knows none by name.
    "cli": {
        *("check", "site", "control", "observe", "submission", "compile"),
        *("slurm", "policy", "state", "tools"),
    },
    # Each is a folder of its own: see `test_a_tool_stands_alone`.
    "tools": {
        *("cli", "check", "site", "control", "observe", "submission", "compile", "container"),
        *("run", "slurm", "policy", "state"),
    },
    # All layers of each, those that are not on compute nodes lazily: see
    # `test_a_feature_stands_alone`.
    "features": {
        *("check", "control", "observe", "submission", "compile", "container"),
        *("run", "slurm", "policy", "state"),
    },
    # The suites for what other packages add, which use it as the core does.
    "testing": {"run", "compile", "container", "policy", "state"},
    # Calls from Python, beside the command line.
    "api": {"check", "control", "observe", "submission", "compile", "slurm", "policy", "state"},
}
# Imported from hpcrun.zip on compute nodes, by a Python that need have no library of ours.
ON_COMPUTE_NODES = {"base", "state", "policy", "slurm", "container", "run", "features"}
TRAINING = {"torch", "deepspeed", "numpy", "xxhash"}
# Of the job's Python too, and done without where they are not.
OPTIONAL = {
    *(
        "cmaes",
        "fsspec",
        "mlflow",
        "optuna",
        "pynvml",
        "tensorboard",
        "torchao",
        "transformer_engine",
    ),
    "wandb",
}
NEVER = {"torch", "deepspeed", "submitit", "textual", *OPTIONAL}
NOT_FOR_HELP = {*NEVER, "omegaconf", "rich", "jinja2", "yaml", "pathspec"}


@dataclass(frozen=True)
class Import:
    """One import statement."""

    importer: str
    target: str
    lazy: bool
    line: int

    def __str__(self) -> str:
        return f"{self.importer}:{self.line} imports {self.target}"


def _name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def _imports(module: str) -> Iterator[Import]:
    """Every import of a module but those that only the type checker sees."""

    def visit(node: ast.AST, lazy: bool) -> Iterator[Import]:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            children: list[ast.AST] = list(node.orelse)
        else:
            children = list(ast.iter_child_nodes(node))
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(module, alias.name, lazy, node.lineno)
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}:{node.lineno}: a relative import"
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                target = name if name in MODULES else str(node.module)
                yield Import(module, target, lazy, node.lineno)
        inside = lazy or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        for child in children:
            yield from visit(child, inside)

    yield from visit(ast.parse(MODULES[module].read_text()), False)


def _part(module: str) -> str:
    """``hpcrun.slurm.steps`` -> ``slurm``; the modules at the top are ``base``."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in MAY_IMPORT else "base"


@functools.cache
def _all() -> list[Import]:
    """Read when a test asks: every process of the suite loads this file."""
    return [one for module in MODULES for one in _imports(module)]


def test_every_module_is_in_a_known_part() -> None:
    top = {module for module in MODULES if _part(module) == "base"}
    assert top == {"hpcrun", "hpcrun.__main__", *(f"hpcrun.{name}" for name in BASE)}


def test_imports_point_one_way() -> None:
    # The package itself hands out what users import; `python -m hpcrun` is the command line.
    entrances = {
        ("hpcrun", "hpcrun.run.session"),
        ("hpcrun", "hpcrun.run.data.curriculum"),
        ("hpcrun", "hpcrun.run.data.packed_documents"),
        ("hpcrun.__main__", "hpcrun.cli.main"),
        ("hpcrun.__main__", "hpcrun.tools.completion.completion_answers"),
    }
    wrong = [
        str(one)
        for one in _all()
        if _top(one) == "hpcrun"
        and (one.importer, one.target) not in entrances
        and _part(one.target) not in {"base", _part(one.importer)}
        and _part(one.target) not in MAY_IMPORT.get(_part(one.importer), set())
    ]
    assert wrong == []
    assert [str(one) for one in _all() if one.importer in _base() and _top(one) == "hpcrun"] == [
        str(one) for one in _all() if one.importer in _base() and one.target in _base()
    ]


# Where one tool does more beside another: lazily, and only where `tools.has` it.
BESIDE = {("perf", "estimate"), ("perf", "report"), ("completion", "remote")}


def _tool(module: str) -> str | None:
    """``hpcrun.tools.doctor.promise`` -> ``doctor``."""
    parts = module.split(".")
    return parts[2] if parts[:2] == ["hpcrun", "tools"] and len(parts) > 2 else None


def test_a_tool_stands_alone() -> None:
    """The core knows none, and none needs another."""
    into = [one for one in _all() if _tool(one.target)]
    from_core = {str(one) for one in into if _tool(one.importer) is None}
    entrance = "hpcrun.tools.completion.completion_answers"
    assert {line.split(" imports ")[1] for line in from_core} <= {entrance}
    beside = [one for one in into if _tool(one.importer) not in (None, _tool(one.target))]
    assert {(_tool(one.importer), _tool(one.target)) for one in beside} <= BESIDE
    assert [str(one) for one in beside if not one.lazy] == []


def test_a_tool_s_part_of_a_job_needs_the_standard_library_alone() -> None:
    here = [one for one in _all() if ".on_nodes" in one.importer]
    assert {_tool(one.importer) for one in here} <= {"doctor", "perf"}
    outside = [one for one in here if _top(one) not in {"hpcrun", *sys.stdlib_module_names}]
    assert [str(one) for one in outside if not (one.lazy and _top(one) in TRAINING)] == []
    assert {_part(one.target) for one in here if _top(one) == "hpcrun"} <= {
        *ON_COMPUTE_NODES,
        "tools",
    }


def _feature(module: str) -> str | None:
    """``hpcrun.features.staging.staged_data`` -> ``staging``."""
    parts = module.split(".")
    return parts[2] if parts[:2] == ["hpcrun", "features"] and len(parts) > 2 else None


def test_a_feature_stands_alone() -> None:
    """The core and the other features know none; on compute nodes it needs what is there."""
    into = [one for one in _all() if _feature(one.target)]
    assert [str(one) for one in into if _feature(one.importer) != _feature(one.target)] == []
    own = [one for one in _all() if _feature(one.importer) and _top(one) == "hpcrun"]
    elsewhere = [one for one in own if _part(one.target) not in ON_COMPUTE_NODES]
    assert [str(one) for one in elsewhere if not one.lazy] == []


def test_the_core_names_no_feature() -> None:
    """Neither in code nor in words: whoever takes a folder away has nothing else to mend."""
    names = re.compile(rf"(?<![a-z])({'|'.join(feature.names()) or '(?!)'})(?![a-z])")
    named = [
        f"{module}:{number}: {line.strip()}"
        for module, path in MODULES.items()
        if _feature(module) is None and _part(module) not in ("tools", "features")
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if names.search(line)
    ]
    assert named == []


def _base() -> set[str]:
    return {f"hpcrun.{name}" for name in BASE}


def test_no_circle_of_modules() -> None:
    imported: dict[str, set[str]] = {module: set() for module in MODULES}
    for one in _all():
        # What the package hands out is looked up when somebody asks for it.
        if one.target in MODULES and one.importer != "hpcrun":
            imported[one.importer].add(one.target)
    left = dict(imported)
    while free := [module for module, targets in left.items() if not targets & left.keys()]:
        for module in free:
            del left[module]
    assert sorted(left) == []


def test_compute_nodes_need_the_standard_library_alone() -> None:
    here = [one for one in _all() if _part(one.importer) in ON_COMPUTE_NODES - {"base"}]
    assert here
    outside = [one for one in here if _top(one) not in {"hpcrun", *sys.stdlib_module_names}]
    assert [
        str(one) for one in outside if not (one.lazy and _top(one) in {*TRAINING, *OPTIONAL})
    ] == []
    assert {_part(one.importer) for one in outside} <= {"run", "features"}


def test_every_library_is_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    declared = {
        _normal(re.split(r"[^\w.-]", line)[0])
        for line in [
            *project["dependencies"],
            *(
                line
                for name in ("train", "tensorboard", "wandb", "mlflow", "top", "s3", "search")
                for line in extras[name]
            ),
        ]
    }
    provided = importlib.metadata.packages_distributions()
    used = {_top(one) for one in _all()} - {"hpcrun", *sys.stdlib_module_names}
    undeclared = {
        name
        for name in used
        if not declared & {_normal(found) for found in provided.get(name, [name])}
    }
    assert undeclared == set()


def _top(one: Import) -> str:
    return one.target.split(".")[0]


def _normal(distribution: str) -> str:
    return re.sub(r"[-_.]+", "-", distribution).lower()


def _modules_of(arguments: list[str], directory: Path) -> set[str]:
    """Top-level modules that a command has imported when it ends."""
    script = (
        "import json, sys\n"
        "from hpcrun.cli.main import main\n"
        "try:\n"
        "    main(sys.argv[2:])\n"
        "except SystemExit as end:\n"
        "    code = end.code\n"
        "with open(sys.argv[1], 'w') as file:\n"
        "    json.dump([code, sorted({name.split('.')[0] for name in sys.modules})], file)\n"
    )
    answer = directory / "modules.json"
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("HPCRUN_")
    }
    ended = subprocess.run(
        [sys.executable, "-c", script, str(answer), *arguments],
        cwd=directory,
        env={**environment, "PYTHONPATH": str(ROOT), "HOME": str(directory)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    code, modules = json.loads(answer.read_text())
    assert code in (0, None), ended.stderr
    return set(modules)


@pytest.fixture(scope="module")
def experiment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory whose ``root`` holds an experiment that has run."""
    directory = tmp_path_factory.mktemp("experiment")
    arguments = ["submit", "hello", "cluster=local", "--root", "root", "--wait"]
    _modules_of(arguments, directory)
    return directory


@pytest.mark.parametrize("arguments", [["--help"], ["--version"]], ids=" ".join)
def test_help_imports_next_to_nothing(arguments: list[str], tmp_path: Path) -> None:
    assert _modules_of(arguments, tmp_path) & NOT_FOR_HELP == set()


@pytest.mark.parametrize(
    "arguments",
    [
        ["plan", "language-model", "cluster=slurm"],
        pytest.param(["estimate", "language-model", "cluster=local"], marks=needs_tool("estimate")),
        ["submit", "language-model", "cluster=slurm", "--dry-run"],
        ["submit", "hello", "cluster=local"],
        ["run", "hello"],
        ["list"],
        ["status"],
        ["status", "hello/0", "--json"],
        ["logs"],
        ["results"],
        pytest.param(["report", "-o", "-"], marks=needs_tool("report")),
        ["why"],
        ["show", "hello/0"],
        pytest.param(["completion", "bash"], marks=needs_tool("completion")),
        pytest.param(["doctor"], marks=needs_tool("doctor")),
    ],
    ids=" ".join,
)
def test_no_command_imports_what_is_slow(arguments: list[str], experiment: Path) -> None:
    if arguments[0] != "completion":
        arguments = [*arguments, "--root", "root"]
    assert _modules_of(arguments, experiment) & NEVER == set()


# Imported before a rank's program begins, once a node and once a rank: hpcrun's modules at most.
_AT_A_START = {"agent": 106, "worker": 56}
# Each takes milliseconds, and is imported where it is needed.
_LATER = {
    *("asyncio", "concurrent.futures", "ctypes", "dataclasses", "datetime", "email", "inspect"),
    *("importlib.metadata", "logging", "pkgutil", "platform", "secrets", "ssl", "traceback"),
    *("hpcrun.state.spec.experiment", "hpcrun.policy.secret_names", "hpcrun.state.manifest"),
    *("hpcrun.python_packages", "hpcrun.run.job.rank_places", "hpcrun.run.job.takeover"),
    "urllib.request",
}
# What an agent needs, and a worker does not.
_NOT_IN_RANKS = {"shutil", "socket", "tarfile", "tempfile", "hpcrun.run.node.cgroup"}


@pytest.mark.parametrize("program", _AT_A_START)
def test_thousands_of_processes_start_with_little(program: str) -> None:
    """Only ever lowered: 500 agents of a job begin at once, on processors that the ranks want."""
    script = (
        "import json, sys\n"
        f"import hpcrun.run.{program}\n"
        "from hpcrun.state.spec import blocks\n"
        "run = blocks.RunSpec({'resources': {'nodes': 2}, 'recovery': {'hang_after': None}})\n"
        "blocks.check(run.spec)\n"
        "run.resources, run.recovery, run.environment, run.telemetry, run.code, run.parallel\n"
        "print(json.dumps(sorted(sys.modules)))\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    # Without what the packages of this Python have it import.
    argv = [sys.executable, "-S", "-c", script]
    ended = subprocess.run(argv, env=environment, capture_output=True, text=True, check=True)
    modules = {*json.loads(ended.stdout)}
    assert modules & (_LATER | (_NOT_IN_RANKS if program == "worker" else set())) == set()
    ours = [name for name in modules if name.split(".")[0] == "hpcrun"]
    assert len(ours) <= _AT_A_START[program]


@needs_tool("completion")
def test_an_answer_to_tab_leaves_click_out(experiment: Path) -> None:
    """click alone takes a third of the 0.1 s that an answer may take."""
    script = (
        "import json, sys\n"
        "from hpcrun.tools.completion.completion_answers import main\n"
        "try:\n"
        "    main()\n"
        "except SystemExit:\n"
        "    print(json.dumps(sorted({name.split('.')[0] for name in sys.modules})))\n"
    )
    lines = ("hpcrun ", "hpcrun status hello/", "hpcrun why hello sta", "hpcrun submit hello ent")
    for line in lines:
        ended = subprocess.run(
            [sys.executable, "-c", script],
            cwd=experiment,
            env={**os.environ, "PYTHONPATH": str(ROOT), "HPCRUN_ROOT": "root", "COMP_WORDS": line},
            capture_output=True,
            text=True,
            check=True,
        )
        *rows, modules = ended.stdout.splitlines()
        assert rows, line
        assert {*json.loads(modules)} & {"click", "rich", "omegaconf", *NEVER} == set(), line

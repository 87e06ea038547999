"""Print the test files of what changed since a commit, and of what imports that.

``python .ci/affected.py [COMMIT]``: HEAD unless one is named. Tests on a real Slurm, of frameworks
and of training are left to ``make test``, and said on stderr; so are those of importers where there
are more than a minute's.
"""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from tests import test_house, test_imports  # noqa: E402

LEFT_OUT = ("tests/cluster/", "tests/frameworks/", "tests/test_training", "tests/test_examples")
MOST = 25


def _git(*words: str) -> list[str]:
    done = subprocess.run(  # noqa: S603 - words of this file, and a commit
        ["git", *words],  # noqa: S607
        **{"cwd": ROOT, "capture_output": True, "text": True, "check": True},
    )
    return done.stdout.split("\n")[:-1]


def _tests_of(module: str) -> str | None:
    """Return the test file of a module, by the mirrored path or the table of the house."""
    path = test_imports.MODULES[module]
    if path.name == "__init__.py":
        return None
    mirrored = test_house._test_of(path)
    if mirrored.is_file():
        return mirrored.relative_to(ROOT).as_posix()
    by = test_house.COVERED_BY.get(test_house._name(path))
    return None if by is None else f"tests/{by}"


def main() -> None:
    """Print one file a line."""
    since = sys.argv[1] if len(sys.argv) > 1 else "HEAD"
    others = _git("ls-files", "--others", "--exclude-standard")
    changed = {*_git("diff", "--name-only", since), *others}
    module_of = {
        path.relative_to(ROOT).as_posix(): name for name, path in test_imports.MODULES.items()
    }
    modules = {module_of[name] for name in changed if name in module_of}
    importers = {one.importer for one in test_imports._all() if one.target in modules} - modules
    own = {
        name
        for name in changed
        if Path(name).match("tests/**/test_*.py") and (ROOT / name).is_file()
    }
    own |= {found for module in modules if (found := _tests_of(module))}
    further = {found for module in importers if (found := _tests_of(module))} - own
    if modules:
        own |= {"tests/test_house.py", "tests/test_imports.py"}
    if any(name.startswith("docs/") or name.endswith(".md") for name in changed):
        own.add("tests/test_docs.py")
    chosen = sorted(own | further if len(further) <= MOST else own)
    here = [name for name in chosen if not name.startswith(LEFT_OUT)]
    left = [*sorted(set(chosen) - set(here)), *(sorted(further) if len(further) > MOST else [])]
    if left:
        print(f"left to `make test`: {' '.join(left)}", file=sys.stderr)
    print("\n".join(here))


main()

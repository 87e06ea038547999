"""Count the functions that `status` and `submit` of a run call, and a spec's steps to sbatch.

    python -m bench.steps [--against CHECKOUT] [--list] [--json] [--output bench/results]

Counts, so that neighbours on the machine change nothing. See bench/README.md.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import FrameType
from typing import Any

# What a spec is on its way: read, swept, checked, compiled, frozen, written.
SHAPES = {
    *("Tree", "Expansion", "SpecDraft", "Resources"),
    *("CompiledRun", "Compiled", "Plan", "Array", "Draft"),
}
TARGETS = {"status": 120, "submit": 400, "modules": 20, "returns": 30}
SPEC = "framework: none\nentry: [sh, -c, echo hello]\nresources: {ntasks_per_node: 2}\n"
# Has the methods of classes that `dataclasses` compiles for others, which are of no file.
METHODS = "shared_dataclass"
COMMANDS = {"status": "status one/0", "submit": "submit one.yaml cluster=slurm --no-check"}


def record(output: Path, words: list[str]) -> None:
    """Type a command into this process; write which functions of hpcrun it called, in order."""
    from hpcrun.cli import main

    package = str(Path(main.__file__).parents[1]) + os.sep
    calls: list[tuple[str, str, int, bool]] = []
    imports, is_there = 0, False  # modules that are being imported; whether sbatch was called

    def look(frame: FrameType, event: str, _argument: object) -> None:
        nonlocal imports, is_there
        code = frame.f_code
        if code.co_name == "<module>" and event in ("call", "return"):
            imports += 1 if event == "call" else -1
        elif event != "call" or imports:
            return
        elif code.co_filename == subprocess.__file__ and code.co_name == "__init__":
            is_there |= "sbatch" in frame.f_locals.get("args", ())
        elif code.co_filename.startswith(package) and not code.co_name.startswith("<"):
            given = [frame.f_locals.get(name) for name in code.co_varnames[: code.co_argcount]]
            given += [one[0] for one in given if isinstance(one, (list, tuple)) and one]
            passes = not is_there and not SHAPES.isdisjoint(type(one).__name__ for one in given)
            module = code.co_filename.removeprefix(package).removesuffix(".py")
            if module != METHODS:
                calls.append((module, code.co_name, code.co_firstlineno, passes))

    sys.argv = ["hpcrun", *words]
    sys.setprofile(look)
    try:
        main.main()
    except SystemExit as end:
        sys.setprofile(None)
        if end.code:
            raise
    output.write_text(json.dumps(calls))


def measure(checkout: Path) -> dict[str, Any]:
    """Return the counts of a checkout, as `TARGETS` has them, and ``lists`` of what they count."""
    with tempfile.TemporaryDirectory(prefix="hpcrun-steps-") as name:
        place = Path(name)
        (place / "one.yaml").write_text(SPEC)
        # submitit looks for srun.
        for program in (place / "sbatch", place / "srun"):
            program.write_text("#!/bin/sh\necho Submitted batch job 100\n")
            program.chmod(0o755)
        environment = {**os.environ, "PYTHONPATH": str(checkout)}
        environment["PATH"] = f"{place}{os.pathsep}{os.environ['PATH']}"

        def run(*words: str, root: str) -> None:
            argv, its = [sys.executable, *words], {**environment, "HPCRUN_ROOT": root}
            subprocess.run(argv, cwd=place, env=its, check=True, capture_output=True)

        run("-m", "hpcrun", "submit", "one.yaml", "cluster=local", "--wait", root="status")
        calls = {}
        for command, words in COMMANDS.items():
            run(__file__, "--record", f"{command}.json", *words.split(), root=command)
            calls[command] = json.loads((place / f"{command}.json").read_text())
    functions = {of: sorted({(*one[:3],) for one in found}) for of, found in calls.items()}
    way = [module for module, _, _, passes in calls["submit"] if passes]
    entered = [new for old, new in zip(["", *way], way, strict=False) if new != old]
    lists = {of: [f"{one[0]} {one[1]}" for one in found] for of, found in functions.items()}
    counts = {of: len(found) for of, found in lists.items()}
    counts |= {"modules": len(set(way)), "returns": len(entered) - len(set(way))}
    return {**counts, "lists": {**lists, "the way to sbatch": entered}}


def main() -> None:
    if sys.argv[1:2] == ["--record"]:
        return record(Path(sys.argv[2]), sys.argv[3:])
    from bench.publish import add_options, publish  # which a measured checkout need not have

    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--against", type=Path, help="another checkout, to be measured too")
    parser.add_argument("--list", action="store_true", help="name the functions and the way")
    add_options(parser, "steps")
    options = parser.parse_args()
    found = {"here": measure(Path(__file__).resolve().parents[1])}
    if options.against:
        found["against"] = measure(options.against.resolve())
    lines = [f"{'':8}{'target':>8}" + "".join(f"{name:>9}" for name in found)]
    for what, most in TARGETS.items():
        lines.append(f"{what:8}{most:>8}" + "".join(f"{one[what]:>9}" for one in found.values()))
    if options.list:
        for title, names in found["here"]["lists"].items():
            lines += ["", f"{title}:", *(f"  {name}" for name in names)]
    counts = {name: {what: one[what] for what in TARGETS} for name, one in found.items()}
    publish(options, "steps", {}, lines, **counts)


if __name__ == "__main__":
    main()

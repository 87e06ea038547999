"""The fuzzer's command line: the long run, and one case again."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from tests.security.fuzz import campaign
from tests.security.fuzz.campaign import CHECKOUT, Case, Class, Result


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.security.fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=20_000, help="how many (default: 20,000)")
    parser.add_argument("--first", type=int, default=0, help="the number of the first")
    parser.add_argument("--seed", type=int, default=17, help="draws other cases (default: 17)")
    parser.add_argument("--target", action="append", default=[], help="only this one; repeatable")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument(
        "--patience", type=float, default=1.0, help="multiplies a case's 5 s on busy machines"
    )
    parser.add_argument("--output", type=Path, help="directory for fuzz.json")
    parser.add_argument(
        "--replay", metavar="NUMBER[:0,2]", help="one case, with these mutations of it alone"
    )
    parser.add_argument("--work", help=argparse.SUPPRESS)
    parser.add_argument("--at", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    only = tuple(options.target)
    if options.work:
        first, end = map(int, options.work.split("-"))
        campaign.work(range(first, end), options.seed, only, options.at, options.patience)
        return 0
    if options.replay:
        number, colon, kept = options.replay.partition(":")
        some = [int(one) for one in kept.split(",") if one] if colon else None
        for line in campaign.replay(Case(options.seed, int(number), only), some):
            print(line)
        return 0
    began, shown, told = time.monotonic(), 0.0, set[str]()

    def say(result: Result) -> None:
        """Tell of new findings at once; what is written is kept if this process is ended."""
        nonlocal shown
        for found in result.findings.values():
            if found.what not in told:
                told.add(found.what)
                print(_text(found), file=sys.stderr, flush=True)
        if time.monotonic() - shown > 60:
            shown = time.monotonic()
            result.seconds = shown - began
            print(f"{result.cases:,} cases", file=sys.stderr, flush=True)
            write(result, options.output)

    result = campaign.run(
        options.cases,
        options.seed,
        first=options.first,
        only=only,
        processes=options.processes,
        patience=options.patience,
        say=say,
    )
    write(result, options.output)
    print(
        f"{result.cases:,} cases of seed {result.seed} in {result.seconds:,.0f} s; the slowest "
        f"took {result.slowest:.2f} s of a processor (case {result.slowest_case}), and the most "
        f"memory was {result.peak_mb:.0f} MB"
    )
    for found in sorted(result.findings.values(), key=lambda one: -one.count):
        print(f"\n{_text(found)}")
    return 1 if result.findings else 0


def _text(found: Class) -> str:
    kept = ",".join(map(str, found.kept))
    detail = found.detail.replace("\n", "\n  ")[:1500]
    case = f"--replay {found.example}:{kept}  {found.targets}"
    return f"{found.count} x {found.what}\n  {case}\n  {detail}"


def write(result: Result, output: Path | None) -> None:
    """Write what a campaign has found so far where ``--output`` says."""
    if output is None:
        return
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    setting = {
        "time": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "commit": commit,
        "processors": os.cpu_count(),
        "python": sys.version.split()[0],
    }
    output.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"setting": setting, **result.to_data()}, indent=2)
    (output / "fuzz.json").write_text(text + "\n")


if __name__ == "__main__":
    sys.exit(main())

"""Print what the tests of a run took; fail where those of a real Slurm or a framework did not run.

``python .ci/summary.py TESTS.xml FAILED``: reads JUnit's file and writes the names of the tests
that failed, one a line.
"""

import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter

every = list(ElementTree.parse(sys.argv[1]).iter("testcase"))  # noqa: S314 - pytest has just written it
cases = [case for case in every if case.get("classname", "").startswith("tests.cluster.")]
number, seconds = Counter(), Counter()
for case in every:
    parts = case.get("classname", "").split(".")
    part = "/".join(parts[:2]) if len(parts) > 2 else "tests"
    if case in cases:
        part += " 24.11" if "[24.11" in case.get("name", "") else " 22.05"
    number[part] += 1
    seconds[part] += float(case.get("time", 0))
print("what took how long, of two processes:")
for part, took in seconds.most_common():
    print(f"{part:<24}{number[part]:>6} tests{took:>8.0f} s")
failed = [case for case in every if {"failure", "error"} & {part.tag for part in case}]
with open(sys.argv[2], "w") as stream:
    for case in failed:
        stream.write(f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name')}\n")
programs = [case for case in every if case.get("classname", "").startswith("tests.frameworks.")]
skipped = [case.get("name") for case in cases + programs if case.find("skipped") is not None]
if skipped:
    sys.exit(f"skipped on the real Slurm or of the frameworks: {', '.join(map(str, skipped))}")
resumed = [case for case in programs if case.get("classname").endswith(".test_recipes")]
print(f"programs of frameworks that were killed and resumed: {len(resumed)}")
if not resumed:
    sys.exit("no program of a framework ran")
for version in ("22.05", "24.11"):
    ran = sum(f"[{version}" in case.get("name", "") for case in cases)
    print(f"tests that ran on a real Slurm {version}: {ran}")
    if not ran:
        sys.exit(f"no test ran on Slurm {version}")

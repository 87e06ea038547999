"""Write `expected/` anew: ``python -m tests.frozen.record [PART-OF-A-NAME ...]``, in the checkout.

Only where a change of what commands say, or of which files a submission writes, is meant: look at
``git diff tests/frozen/expected`` afterwards, every line of which is a change for users. With parts
of names, only the expectations of these names are written; otherwise all, and those that no command
belongs to any more go.

`root.tar.gz` stays. It was made by real runs of hpcrun 0.1.0 (commit 817de8d): of the specs in its
`specs/`, on the local executor of a machine called workstation without a network, by a user ada;
`half` and `doomed` on a Slurm 22.05 of tests/testbed, of which `squeue.answer` and `sacct.answer`
are the words at that moment. Paths of that machine were replaced by others of the same length,
checkpoints and DeepSpeed's own program beside them by zeros of the same size, and each `hpcrun.zip`
by an empty one; `golden/` has the specs of tests/compile/golden as they were then. A tree of a
later version goes beside it, not in its place: that old trees can be read is what it is for.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from tests.frozen import fresh
from tests.frozen.cases import CASES
from tests.frozen.desk import EXPECTED, Desk
from tests.frozen.files import FILES


def main(parts: list[str]) -> None:
    """Write the expectations whose names have one of these parts; all without parts."""
    written = set()

    def wanted(name: str) -> bool:
        written.add(name)
        return not parts or any(part in name for part in parts)

    EXPECTED.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        desk = Desk(Path(directory, "desk"))
        for case in CASES:
            if wanted(f"{case.name}.txt"):
                (EXPECTED / f"{case.name}.txt").write_text(desk.run(case).text(case))
        for number, (name, write) in enumerate(FILES.items()):
            if wanted(name):
                (EXPECTED / name).write_text(write(Desk(Path(directory, str(number)))))
        if wanted(fresh.FILE):
            place = Path(directory, "fresh")
            place.mkdir()
            found = json.dumps(fresh.submit(place), indent=1)
            (EXPECTED / fresh.FILE).write_text(found + "\n")
    for path in EXPECTED.iterdir():
        if not parts and path.name not in written:
            path.unlink()


if __name__ == "__main__":
    main(sys.argv[1:])

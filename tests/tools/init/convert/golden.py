"""Writes the specs beside the scripts anew: ``python -m tests.tools.init.convert.golden``."""

from __future__ import annotations

from hpcrun.tools.init.convert.conversion import convert, read_script
from tests.tools.init.convert.support import SCRIPTS


def main() -> None:
    """Convert each script; a shell file that is the script itself is not written again."""
    for script in SCRIPTS:
        done = convert(read_script(script), script, "experiment.sh")
        script.with_suffix(".yaml").write_text(done.spec)
        if "framework: batch" not in done.spec:
            script.with_suffix(".sh").write_text(done.shell)


if __name__ == "__main__":
    main()

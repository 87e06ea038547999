"""Writes the specs beside the scripts of these tests anew: ``python -m tests.convert.golden``."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from hpcrun.convert.conversion import convert, read_script
from tests.convert.support import SCRIPTS, project


def main() -> None:
    """Convert each script in a directory with what it names."""
    with tempfile.TemporaryDirectory() as name:
        directory = project(Path(name))
        os.chdir(directory)
        for script in SCRIPTS:
            path = directory / script.name
            done = convert(read_script(path), path, directory)
            script.with_suffix(".yaml").write_text(done.spec)


if __name__ == "__main__":
    main()

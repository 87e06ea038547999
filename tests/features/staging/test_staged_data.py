"""What was staged, as ranks find it, and as a run of two attempts does."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from hpcrun.features.staging import staged_data
from hpcrun.features.staging.staged_data import StagedData, StagedPaths
from tests.support.place import Place


def test_paths_at_and_below_sources_are_on_the_node(tmp_path: Path) -> None:
    data, node = tmp_path / "data", tmp_path / "hpcrun-start"
    (data / "tokens").mkdir(parents=True)
    node.mkdir()
    (tmp_path / "link").symlink_to(data)
    shown = StagedData(node, [f"{data}/tok*"])
    (source,) = shown.sources()
    shown.show({source: tmp_path / "copy"})
    staged = StagedPaths(node).staged
    assert (staged / "tokens").readlink() == tmp_path / "copy"
    launch: Any = SimpleNamespace(
        own_node=SimpleNamespace(scratch=str(node / "attempt-1")),
        block=lambda _: SimpleNamespace(paths=["tok*"]),
    )
    assert staged_data.local(launch, data / "tokens") == staged / "tokens"
    found = staged_data.local(launch, tmp_path / "link" / "tokens" / "a" / "0.bin")
    assert found == staged / "tokens" / "a" / "0.bin"
    for other in (data, data / "tokens-2", Path("tokens")):
        assert staged_data.local(launch, other) == other
    assert staged_data.local(None, "tokens") == Path("tokens"), "outside hpcrun"


PROGRAM = """
import hpcrun, os, sys
session = hpcrun.session()
staged, local = sys.argv[1], session.staged("DATA/tokens/0.bin")
print("read", local.read_bytes() == open("DATA/tokens/0.bin", "rb").read(), flush=True)
assert str(local) == f"{staged}/tokens/0.bin" and staged == os.environ["HPCRUN_STAGED"]
assert str(session.staged("/etc/passwd")) == "/etc/passwd"
if session.attempt == 1:
    os._exit(3)
"""


def test_both_attempts_of_a_script_find_it(tmp_path: Path, place: Place) -> None:
    """A kill between: the second attempt copies nothing, and nothing is left at the end."""
    data = tmp_path / "data"
    (data / "tokens").mkdir(parents=True)
    (data / "tokens" / "0.bin").write_bytes(bytes(2_000))
    (place.code / "reading.py").write_text(PROGRAM.replace("DATA", str(data)))
    place.submit(
        f"exec {sys.executable} reading.py ${{hpcrun:staged}}",
        nodes=2,
        staging={"paths": [str(data / "tokens")]},
        recovery={"in_place": 2},
    )
    code, said = place.supervise(timeout=90)
    assert code == 0, said + place.output()
    assert "stages data on 2 nodes" in said
    for number in (1, 2):
        assert "read True" in place.output(attempt=number)
    first, second = (place.attempt(number).copied or {} for number in (1, 2))
    # Both nodes are this machine, which has one copy.
    assert (first["nodes"], first["bytes"], first["copied"], first["notes"]) == (
        2,
        2_000,
        2_000,
        [],
    )
    assert second["copied"] == 0
    assert "all of it was there already" in said

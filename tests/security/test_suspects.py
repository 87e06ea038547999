"""The shared record of suspect nodes against another user of the same directory.

`ME` reads and records, `STRANGER` has prepared the directory: both are real users.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from tests.support import users
from tests.support.users import ME, STRANGER

pytestmark = users.needs_root

READ = """
import json, sys
from pathlib import Path
from hpcrun.state.suspects.suspect_nodes import SuspectNodes
nodes = SuspectNodes(Path(sys.argv[1]))
for word in sys.argv[2:]:
    nodes.record(word, "seen by me", "slow_link")
found = nodes.read()
print(json.dumps({"entries": [[one.node, one.author, one.reason] for one in found.entries],
                  "problems": found.problems, "trusted": list(found.trusted)}))
"""


def ask(place: Path, *record: str, user: users.User = ME, limit: float = 20) -> dict[str, list]:
    done = user.run(
        [users.PYTHON, "-c", READ, place / "suspects", *record], home=place, timeout=limit
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def place(open_place: Path) -> Path:
    (open_place / "suspects").mkdir()
    (open_place / "suspects").chmod(0o1777)
    return open_place


def line(node: str, **more: object) -> str:
    now = time.time()
    known = {"time": now, "suspect": node, "reason": "x", "kind": "doctor", "until": now + 9999}
    return json.dumps({**known, **more}) + "\n"


def test_what_one_user_records_another_reads(place: Path) -> None:
    ask(place, "node07", user=STRANGER)
    found = ask(place, "node08")
    assert {(node, author) for node, author, _ in found["entries"]} == {
        ("node07", STRANGER.name),
        ("node08", ME.name),
    }
    assert found["problems"] == []


def test_nobody_speaks_for_another(place: Path) -> None:
    directory = place / "suspects"
    # A file with my number that is the stranger's; one of his that others may write to.
    STRANGER.write(directory / f"{ME.uid}.jsonl", line("forged"))
    for number in range(50):
        STRANGER.write(directory / f"{ME.uid}-{number:08x}.jsonl", line("forged"))
    STRANGER.write(directory / f"{STRANGER.uid}.jsonl", line("open"), mode=0o666)
    found = ask(place, "node08")
    assert [(node, author) for node, author, _ in found["entries"]] == [("node08", ME.name)]
    said = " ".join(found["problems"])
    assert f"it is {STRANGER.name}'s" in said
    assert "others may write to it" in said
    # My own went beside the file that took its name.
    assert (directory / f"{ME.uid}.jsonl").read_text().count("node08") == 0


def test_nobody_has_me_trust_or_clear_a_node(place: Path) -> None:
    ask(place, "node08")
    now = time.time()
    text = json.dumps({"time": now, "clear": "node08"}) + "\n"
    text += json.dumps({"time": now, "trust": "node08", "until": now + 999}) + "\n"
    STRANGER.write(place / "suspects" / f"{STRANGER.uid}.jsonl", text)
    found = ask(place)
    assert [node for node, _, _ in found["entries"]] == ["node08"]
    assert found["trusted"] == []


@pytest.mark.parametrize("what", ["link", "hard link", "fifo", "directory", "device"])
def test_what_lies_in_my_files_place_is_neither_followed_nor_written(
    place: Path, what: str
) -> None:
    precious = ME.write(place / "precious", "mine\n")
    target = place / "suspects" / f"{ME.uid}.jsonl"
    if what == "link":
        target.symlink_to(precious)
    elif what == "hard link":
        os.link(precious, target)
    elif what == "fifo":
        os.mkfifo(target, 0o666)
    elif what == "directory":
        target.mkdir()
    else:
        target.symlink_to("/dev/zero")
    if what != "hard link":
        os.chown(target, STRANGER.uid, STRANGER.gid, follow_symlinks=False)
    found = ask(place, "node08")
    assert [node for node, _, _ in found["entries"]] == ["node08"]
    assert precious.read_text() == "mine\n"


def test_reading_is_bounded(place: Path) -> None:
    directory = place / "suspects"
    STRANGER.write(directory / f"{STRANGER.uid}.jsonl", line("n1") * 40_000)
    with (directory / f"{STRANGER.uid}-00000000.jsonl").open("wb") as stream:
        stream.truncate(1 << 40)
    STRANGER.write(directory / f"{STRANGER.uid}-00000001.jsonl", "[" * 200_000)
    few = "".join(line(f"m{number}") for number in range(1000))
    STRANGER.write(directory / f"{STRANGER.uid}-00000002.jsonl", few)
    for number in range(3, 300):
        STRANGER.write(directory / f"{STRANGER.uid}-{number:08x}.jsonl", line(f"x{number}"))
    for path in directory.iterdir():
        os.chown(path, STRANGER.uid, STRANGER.gid)
    began = time.monotonic()
    found = ask(place, "node08", limit=10)
    assert time.monotonic() - began < 5
    theirs = [node for node, author, _ in found["entries"] if author == STRANGER.name]
    assert 0 < len(theirs) <= 4 * 200
    assert len([node for node in theirs if node.startswith("x")]) <= 2
    assert "node08" in [node for node, _, _ in found["entries"]]


def test_what_they_say_acts_on_no_terminal_and_is_no_option(place: Path) -> None:
    text = line("n1", reason="\x1b]0;owned\x07 a\nb") + line("--uid=0") + line("$(id)")
    STRANGER.write(place / "suspects" / f"{STRANGER.uid}.jsonl", text + line("n2\x1b[2J"))
    ((node, _, reason),) = ask(place)["entries"]
    assert node == "n1"
    assert "\x1b" not in reason
    assert "\n" not in reason

"""What one host concludes of another's changes, on storage that caches as NFS does."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hpcrun import shared_look
from tests.support.nfs import LONG, Host


def test_a_name_that_was_looked_for_too_early(two_hosts: tuple[Host, Host]) -> None:
    other, here = two_hosts
    assert not shared_look.is_there(here / "attempts")
    assert not (here / "attempts").exists()
    (other / "attempts").mkdir()
    # A plain look is what it believes.
    assert not (here / "attempts").exists()
    assert shared_look.is_there(here / "attempts")
    assert shared_look.is_directory(here / "attempts")
    assert not shared_look.is_there(here / "nothing")


def test_all_of_a_path_was_looked_for_too_early(two_hosts: tuple[Host, Host]) -> None:
    other, here = two_hosts
    deep = here / "runs" / "1" / "attempts"
    assert not deep.exists()
    assert not deep.parent.exists()
    assert not deep.parent.parent.exists()
    (other / "runs" / "1" / "attempts" / "2").mkdir(parents=True)
    assert not deep.exists()
    assert shared_look.names(deep) == ["2"]
    assert shared_look.refresh(deep / "2")
    (deep / "2" / "launch.json").write_text("{}")


@pytest.mark.parametrize("above", ["", "runs"])
def test_a_directory_is_asked_for_its_names(two_hosts: tuple[Host, Host], above: str) -> None:
    other, here = two_hosts
    place = here / above
    (other / above).mkdir(exist_ok=True)
    assert shared_look.names(place) == []
    assert not (place / "new").exists()
    (other / above / "new").write_text("")
    assert shared_look.names(place) == ["new"]
    assert (place / "new").read_text() == ""
    (other / above / "new").unlink()
    assert shared_look.names(place) == []


def test_what_is_no_directory(two_hosts: tuple[Host, Host]) -> None:
    _, here = two_hosts
    (here / "file").write_text("")
    assert shared_look.names(here / "file") == []
    assert not shared_look.refresh(here / "file")
    assert shared_look.is_there(here / "file")
    assert not shared_look.is_directory(here / "file")
    assert not shared_look.refresh(here / "none" / "deeper")
    (here / "link").symlink_to("nowhere")
    assert shared_look.is_there(here / "link")


def test_a_directory_in_another_ones_place(two_hosts: tuple[Host, Host]) -> None:
    other, here = two_hosts
    (other / "place").mkdir()
    assert shared_look.names(here / "place") == []
    (other / "place").rmdir()
    (other / "place").mkdir()
    (other / "place" / "new").mkdir()
    assert shared_look.names(here / "place") == ["new"]


def test_where_opening_a_directory_asks_nothing(mount: Callable[..., Host]) -> None:
    """Such a client sees names late, so that absence is none yet for `SEEN_WITHIN` seconds."""
    other, here = mount(LONG), mount(f"{LONG},blind")
    assert not shared_look.is_there(here / "late")
    (other / "late").mkdir()
    assert not shared_look.is_there(here / "late")


@pytest.mark.parametrize("pause", [0.0, 0.01])
def test_many_looks_come_in_order_and_slow_ones_at_once(pause: float) -> None:
    threads = set()

    def look(number: int) -> int:
        if pause:
            time.sleep(pause)
        threads.add(threading.get_ident())
        return number * number

    assert list(shared_look.each(look, range(100))) == [number * number for number in range(100)]
    assert (len(threads) > 1) == (pause > 0)
    assert list(shared_look.each(look, [])) == []


@pytest.mark.parametrize("wrong", [3, 40])
def test_a_look_that_fails_does_so_in_its_turn(wrong: int) -> None:
    def look(number: int) -> int:
        time.sleep(0.005)
        if number == wrong:
            raise PermissionError(number)
        return number

    found = []
    with pytest.raises(PermissionError):  # noqa: PT012
        for one in shared_look.each(look, range(60)):
            found.append(one)
    assert found == list(range(wrong))


def test_who_leaves_early_does_not_wait_for_silent_storage() -> None:
    silent = threading.Event()

    def look(number: int) -> int:
        time.sleep(0.005)
        if number > 20:
            silent.wait(30)
        return number

    began = time.monotonic()
    looks = shared_look.each(look, range(1_000))
    assert [next(looks) for _ in range(15)] == list(range(15))
    looks.close()  # type: ignore[attr-defined]
    assert time.monotonic() - began < 5
    silent.set()


def test_a_mark_is_another_after_a_change(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    assert shared_look.mark(path) is None
    path.write_text("1")
    before = shared_look.mark(path)
    assert before == shared_look.known_mark(path) == shared_look.mark(path)
    path.write_text("12")
    assert shared_look.mark(path) != before
    assert shared_look.mark(tmp_path) is not None


@pytest.mark.parametrize("leaves", [False, True])
def test_looks_are_only_so_far_ahead_of_what_is_wanted(leaves: bool) -> None:
    """What was found waits in memory, and a reader may stop half way."""
    done: list[int] = []

    def look(number: int) -> int:
        done.append(number)
        return number

    found = shared_look._at_once(look, range(2_000))
    assert next(found) == 0
    time.sleep(0.2)
    assert len(done) <= shared_look._AHEAD + 1
    if leaves:
        del found
    else:
        assert [*found] == [*range(1, 2_000)]

"""Entries of a kind by name: hpcrun's own, and those of installed packages."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcrun.errors import HpcrunError, UsageError
from hpcrun.extensions import Registry
from tests.support.added_package import install

OWN = {"mean": "statistics:mean"}


def _install(directory: Path, package: str, entries: str, module: str = "") -> None:
    install(directory, package, "hpcrun.numbers", entries, module)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def _registry() -> Registry[object]:
    return Registry("hpcrun.numbers", "number", OWN)


def test_own_entries_need_no_look_at_what_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.metadata
    import statistics

    monkeypatch.delattr(importlib.metadata, "entry_points")
    numbers = _registry()
    assert "mean" in numbers
    assert numbers.own == ["mean"]
    assert numbers.load("mean") is statistics.mean
    assert numbers.package("mean") is None


def test_a_reserved_word_is_never_an_entry(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.metadata

    _install(place, "odd_autos", "auto = odd_autos:AUTO\nodd = odd_autos:AUTO", "AUTO = 1\n")
    numbers: Registry[object] = Registry("hpcrun.numbers", "number", OWN, reserved=("auto",))
    assert numbers.names == ["mean", "odd"]
    unread: Registry[object] = Registry("hpcrun.numbers", "number", OWN, reserved=("auto",))
    monkeypatch.delattr(importlib.metadata, "entry_points")
    assert "auto" not in unread
    assert unread.package("auto") is None


def test_an_installed_package_adds_one(place: Path) -> None:
    _install(place, "odd_numbers", "odd = odd_numbers:ODD", "ODD = 3\n")
    numbers = _registry()
    assert numbers.names == ["mean", "odd"]
    assert numbers.load("odd") == 3
    assert numbers.package("odd") == "odd_numbers"


def test_an_own_name_is_kept(place: Path) -> None:
    import statistics

    _install(place, "odd_means", "mean = odd_means:MEAN", "raise SystemExit\n")
    numbers = _registry()
    assert numbers.load("mean") is statistics.mean
    assert numbers.names == ["mean"]


@pytest.mark.parametrize(
    ("module", "said"),
    [
        ("import not_installed\n", "ModuleNotFoundError: No module named 'not_installed'"),
        ("1 / 0\n", "ZeroDivisionError"),
        ("", "AttributeError"),
    ],
)
def test_a_broken_package_is_named(place: Path, module: str, said: str) -> None:
    _install(place, "broken_numbers", "broken = broken_numbers:BROKEN", module)
    with pytest.raises(HpcrunError, match=said) as error:
        _registry().load("broken")
    assert "the package broken_numbers" in str(error.value)
    assert "pip uninstall broken_numbers" in str(error.value)


def test_an_unknown_name_and_one_that_two_packages_offer(place: Path) -> None:
    with pytest.raises(UsageError, match="no number 'other'; there are: mean"):
        _registry().load("other")
    with pytest.raises(UsageError, match="did you mean 'mean'"):
        _registry().load("meen")
    for package in ("twin_a", "twin_b"):
        _install(place, package, f"twin = {package}:X", "X = 1\n")
    with pytest.raises(UsageError, match="offered by twin_a and by twin_b"):
        _registry().load("twin")


def test_an_entry_that_lacks_what_its_kind_needs(place: Path) -> None:
    _install(place, "odd_numbers", "odd = odd_numbers:ODD", "ODD = 3\n")
    numbers: Registry[object] = Registry("hpcrun.numbers", "number", OWN, ("real", "half", "third"))
    with pytest.raises(HpcrunError, match=r"odd_numbers \(odd_numbers:ODD\) has no half and no th"):
        numbers.load("odd")

"""``session.config``."""

from __future__ import annotations

import copy
import operator
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from hpcrun.run.rank.config import Config

DATA: dict[str, Any] = {
    "lr": 0.1,
    "model": {"width": 8, "layers": [{"heads": 2}, 3], "items": "a key of that name"},
    "nothing": None,
    "on": False,
}


@pytest.fixture
def config() -> Config:
    return Config(copy.deepcopy(DATA))


def test_by_attribute_and_by_key(config: Config) -> None:
    assert config.lr == config["lr"] == 0.1
    assert config.model.width == config["model"]["width"] == 8
    assert config.nothing is None
    assert config.on is False
    assert config.model["items"] == "a key of that name"


def test_it_is_a_mapping(config: Config) -> None:
    assert list(config) == ["lr", "model", "nothing", "on"]
    assert len(config) == 4
    assert "lr" in config
    assert "x" not in config
    assert config.get("x", 7) == 7
    assert dict(**config.model)["width"] == 8
    assert config == Config(copy.deepcopy(DATA))


@pytest.mark.parametrize(
    "change",
    [
        lambda config: setattr(config, "lr", 1),
        lambda config: setattr(config.model, "width", 1),
        lambda config: operator.setitem(config, "lr", 1),
        lambda config: operator.delitem(config, "lr"),
    ],
)
def test_it_is_read_only(config: Config, change: Callable[[Config], None]) -> None:
    with pytest.raises(TypeError):
        change(config)
    assert config.to_dict() == DATA


def test_setting_names_the_full_key(config: Config) -> None:
    with pytest.raises(TypeError, match=r"^config\.model\.width: the configuration is read-only$"):
        config.model.width = 9


def test_a_key_that_is_not_there_is_answered_with_one_that_is(config: Config) -> None:
    with pytest.raises(AttributeError) as caught:
        _ = config.model.widht
    assert str(caught.value) == (
        "config.model has no key 'widht'; did you mean 'width'? (it has width, layers, items)"
    )
    with pytest.raises(AttributeError, match=r"config has no key 'zzz' \(it has lr, model"):
        _ = config.zzz
    with pytest.raises(AttributeError, match=r"\(it has nothing\)"):
        _ = Config({}).lr
    with pytest.raises(KeyError):
        config["zzz"]


def test_hasattr_and_getattr_work(config: Config) -> None:
    assert not hasattr(config, "zzz")
    assert getattr(config, "zzz", 5) == 5


def _pickled(config: Config) -> Any:
    return pickle.loads(pickle.dumps(config))  # noqa: S301


@pytest.mark.parametrize("how", [copy.deepcopy, _pickled])
def test_it_survives_the_way_to_a_loaders_worker(config: Config, how: Any) -> None:
    copied = how(config.model)
    assert copied == config.model
    assert copied.width == 8
    with pytest.raises(TypeError, match=r"config\.model\.width"):
        copied.width = 9

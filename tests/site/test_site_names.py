"""The names of a site are kept for completion, and for the cluster that they are of."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcrun.site import site_names
from tests.support import made_site


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm/slurm.conf")
    return tmp_path / "hpcrun" / "site-names.json"


def test_names_are_kept_for_the_cluster_that_they_are_of(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert site_names.names_of("resources.partition") == []
    machines = made_site.nodes(["g1"], Gres="gpu:a100:4", AvailableFeatures="fast,a100")
    partitions = [
        made_site.partition("gpu", "g1"),
        made_site.partition("secret", "g1", Hidden="YES"),
        made_site.partition("ops", "g1", RootOnly="YES"),
    ]
    site_names.keep(made_site.site(partitions, machines, accounts={"lab": "normal,long"}))
    found = {
        key: site_names.names_of(f"resources.{key}") for key in ("partition", "account", "qos")
    }
    assert found == {"partition": ["gpu"], "account": ["lab"], "qos": ["long", "normal"]}
    assert site_names.names_of("resources.constraint") == ["a100", "fast"]
    assert site_names.names_of("resources.gpu_type") == ["a100"]
    assert site_names.names_of("resources.nodes") == []
    monkeypatch.setenv("SLURM_CONF", "/etc/other/slurm.conf")
    assert site_names.names_of("resources.partition") == []
    assert cache.is_file()


@pytest.mark.parametrize("text", ["", "[]", '{"reach": 1}', '{"names": {"resources.qos": 3}}'])
def test_a_broken_cache_is_none(text: str, cache: Path) -> None:
    cache.parent.mkdir(parents=True)
    cache.write_text(text)
    assert site_names.names_of("resources.qos") == []


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path: Path, cache: Path) -> None:
    cache.parent.write_text("")
    site_names.keep(made_site.site([], []))
    assert not cache.exists()

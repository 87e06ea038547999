"""The file of baselines: written, read, and refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcrun.errors import BrokenFile
from hpcrun.tools.doctor import site_baseline
from hpcrun.tools.doctor.site_baseline import NodeBaseline

ONE = NodeBaseline(1e9, {"CPU": 1e11}, {"2 nodes, 2 ranks": {"1024": 5e8}}, nodes=("n1", "n2"))


def test_partitions_stand_beside_each_other(tmp_path: Path) -> None:
    path = site_baseline.place(tmp_path)
    assert site_baseline.read(path, "gpu") is None
    site_baseline.write(path, "gpu", ONE)
    site_baseline.write(path, "cpu", NodeBaseline(2e9))
    found = site_baseline.read(path, "gpu")
    assert found is not None
    assert found.when > 0
    assert (found.link, found.gemm, found.busbw, found.nodes) == (
        *(1e9, {"CPU": 1e11}, {"2 nodes, 2 ranks": {"1024": 5e8}}),
        ("n1", "n2"),
    )
    other = site_baseline.read(path, "cpu")
    assert other is not None
    assert other.link == 2e9
    assert site_baseline.read(path, "fat") is None


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "7", '{"gpu": 3}', '{"gpu": {"link": 1}}'),
        '{"gpu": {"link": "fast", "gemm": {}, "busbw": {}, "when": 0, "nodes": []}}',
        '{"gpu": {"link": -1, "gemm": {}, "busbw": {}, "when": 0, "nodes": []}}',
        '{"gpu": {"link": null, "gemm": {"CPU": 1e999}, "busbw": {}, "when": 0, "nodes": []}}',
        '{"gpu": {"link": null, "gemm": {}, "busbw": {"a": {"x": 1}}, "when": 0, "nodes": []}}',
    ],
)
def test_what_is_no_baseline(tmp_path: Path, text: str) -> None:
    path = tmp_path / "baseline.json"
    path.write_text(text)
    with pytest.raises(BrokenFile, match=r"baseline\.json"):
        site_baseline.read(path, "gpu")

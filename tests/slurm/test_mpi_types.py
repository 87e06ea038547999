"""The type of MPI that a program's MPI knows, of those that a site's srun has."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from hpcrun.errors import HpcrunError
from hpcrun.slurm import client, mpi_types

# As Slurm 22.05 and 24.11 print it, on stderr.
LIST = """MPI plugin types are...
\tpmix
\tnone
\tcray_shasta
\tpmi2
specific pmix plugin versions available: pmix_v4
"""
MPICH = "MPICH Version:      5.0.2\nMPICH configure:    --with-device=ch4:ucx,ofi --with-pm=hydra"
MPICH_PMIX = "MPICH Version:      4.0.2\nMPICH configure:    --with-pmix=/usr --with-pm=no"
OPEN_MPI_5, OPEN_MPI_4 = "Open MPI v5.0.11, package: Open MPI", "Open MPI v4.1.4, package: Debian"


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    found = {"list": LIST, "default": "none"}

    def command(argv: Sequence[str], **_: object) -> str:
        assert argv == ["srun", "--mpi=list"]
        if not found["list"]:
            raise client.CommandFailed("Could not establish a configuration source")
        return found["list"]

    monkeypatch.setattr(client, "command", command)
    monkeypatch.setattr(client, "configuration", lambda: {"MpiDefault": found["default"]})
    return found


@pytest.mark.parametrize(
    ("library", "default", "expected"),
    [
        (MPICH, "none", "pmi2"),
        (MPICH, "(null)", "pmi2"),
        # It would end with an error, and Open MPI 5 would be alone, without one.
        (MPICH, "pmix", "pmi2"),
        (OPEN_MPI_5, "pmi2", "pmix"),
        (OPEN_MPI_5, "pmix_v4", "pmix_v4"),
        (OPEN_MPI_4, "pmi2", "pmi2"),
        (OPEN_MPI_4, "none", "pmix"),
        (MPICH_PMIX, "none", "pmix"),
        ("Intel(R) MPI Library 2021.13 for Linux* OS", "none", "pmi2"),
        ("MPI VERSION : CRAY MPICH version 8.1.29", "none", "cray_shasta"),
        (None, "pmi2", "pmi2"),
        (None, "(null)", "pmix"),
    ],
)
def test_the_type_for_an_mpi(
    site: dict[str, str], library: str | None, default: str, expected: str
) -> None:
    site["default"] = default
    assert mpi_types.choose(library)[0] == expected


def test_an_mpi_for_which_the_site_has_nothing(site: dict[str, str]) -> None:
    site["list"] = LIST.replace("\tpmix\n", "").replace("specific pmix", "specific")
    with pytest.raises(HpcrunError, match=r"for cray_shasta, pmi2 .*Open MPI v5.* needs pmix"):
        mpi_types.choose(OPEN_MPI_5)
    site["list"] = "MPI plugin types are...\n\tnone\n"
    with pytest.raises(HpcrunError, match=r"for no MPI .*the program's MPI needs pmix or pmi2"):
        mpi_types.choose(None)


def test_an_srun_that_does_not_answer(site: dict[str, str]) -> None:
    site["list"] = ""
    with pytest.raises(HpcrunError, match=r"srun --mpi=list: Could not establish"):
        mpi_types.choose(None)


def test_a_name_and_its_versions_are_offered(site: dict[str, str]) -> None:
    types = mpi_types.offered()
    assert types == ["pmix", "cray_shasta", "pmi2"]
    names = ("none", "pmi2", "pmix", "pmix_v4", "pmi3", "openmpi")
    assert [mpi_types.is_offered(name, types) for name in names] == [True] * 4 + [False] * 2

"""The types of MPI for which a site's srun prepares tasks, and the one that a program's MPI knows.

An MPI that finds nothing that it knows takes each rank for the only one, without a word. Seen on
22.05 and 24.11: MPICH meets by ``pmi2``, and is alone by ``none``; Open MPI 5 meets by ``pmix``,
and is alone by ``pmi2`` and ``none``.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from hpcrun.errors import HpcrunError
from hpcrun.slurm import client
from hpcrun.text import listed

NONE, PMIX, PMI2, CRAY = "none", "pmix", "pmi2", "cray_shasta"
_KEY = "resources.mpi"
_OPEN_MPI = re.compile(r"open mpi v?(\d+)", re.IGNORECASE)
# MPICH tells how it was configured.
_WITH_PMIX = re.compile(r"--with-(?:pmix|pmi=pmix)\b")


def choose(library: str | None) -> tuple[str, str]:
    """Return a type for a program on this site, and the reason.

    ``library`` is the answer of MPI_Get_library_version, None if unknown. Raises HpcrunError if
    srun has no type that this MPI knows.
    """
    types = offered()
    default = client.configuration().get("MpiDefault", "").strip("()")
    default = "" if default == "null" else default
    known = _types_of(library)
    if default not in ("", NONE) and (library is None or _among(default, known)):
        return default, "the site's MpiDefault"
    if found := next((one for one in known if one in types), None):
        return found, f"for {_name(library)}" if library else "the site's MpiDefault is none"
    raise HpcrunError(
        f"srun prepares tasks for {listed(types, 8) or 'no MPI'} (srun --mpi=list), and "
        f"{_name(library)} needs {' or '.join(known)}",
        hint=f"take an MPI of the site's, or set {_KEY}",
    )


def offered() -> list[str]:
    """Return the types of ``srun --mpi=list`` but for ``none``; HpcrunError where it fails."""
    try:
        said = client.command(["srun", "--mpi=list"], with_messages=True)
    except client.CommandFailed as error:
        raise HpcrunError(f"srun --mpi=list: {error}", hint=f"set {_KEY}") from None
    names = re.findall(r"^(?:srun:)?\s+(\w+)\s*$", said, re.MULTILINE)
    return [name for name in names if name != NONE]


def is_offered(name: str, types: Collection[str]) -> bool:
    """Check whether srun knows ``--mpi=name``, by what `offered` returned; pmix_v4 is a version."""
    return name == NONE or _among(name, types)


def _types_of(library: str | None) -> list[str]:
    """Return the types that an MPI knows, the best first."""
    if library is None:
        return [PMIX, PMI2]
    if match := _OPEN_MPI.search(library):
        return [PMIX] if int(match[1]) >= 5 else [PMIX, PMI2]
    if "cray" in library.lower():
        return [CRAY, PMI2]
    return [PMIX, PMI2] if _WITH_PMIX.search(library) else [PMI2]


def _among(name: str, types: Collection[str]) -> bool:
    # A version of it may be named: pmix_v4.
    return any(name == one or name.startswith(f"{one}_v") for one in types)


def _name(library: str | None) -> str:
    return "the program's MPI" if library is None else " ".join(library.split(",")[0].split()[:4])

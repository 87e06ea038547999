"""Faults, phases, places and forms of runs; and a covering array of all pairs of them."""

from __future__ import annotations

from dataclasses import dataclass

from hpcrun.policy import causes
from tests.cluster.ward import ARRAY, SINGLE, STAGES
from tests.testbed import VERSIONS

PHASES = ("start-up", "forward", "accumulation", "optimizer", "save", "restore")
PLACES = {"first": 0, "middle": 1, "last": 2}

RANK, NODE = "rank", "node"


@dataclass(frozen=True)
class Fault:
    """What happens, and what hpcrun is to say of it.

    Attributes
    ----------
    kind
        Of the end that follows; None where the run just goes on.
    blames
        ``rank`` or ``node``: which the cause has to name; None for neither.
    by_itself
        What the rank does (of `jobs/phases.py`); None where all of it is done from outside.
    from_outside
        A method of `injection.Injection`; None where the rank does all of it.
    """

    kind: str | None
    blames: str | None = None
    by_itself: str | None = None
    from_outside: str | None = None


FAULTS = {
    "kill": Fault(causes.RANK_CRASH, RANK, "kill"),
    "segfault": Fault(causes.RANK_CRASH, RANK, "segfault"),
    "abort": Fault(causes.RANK_CRASH, RANK, "abort"),
    "exception": Fault(causes.RANK_CRASH, RANK, "exception"),
    "sys.exit(0)": Fault(causes.HANG, RANK, "leave"),
    "os._exit(0)": Fault(causes.RANK_CRASH, RANK, "vanish"),
    "SIGSTOP": Fault(causes.HANG, RANK, "stop"),
    "endless collective": Fault(causes.HANG, RANK, "collective"),
    "power": Fault(causes.NODE_FAILURE, NODE, None, "power"),
    "links": Fault(causes.NODE_FAILURE, NODE, None, "links"),
    "ib0": Fault(causes.NODE_FAILURE, NODE, None, "fabric"),
    "disk full": Fault(None, None, None, "full_disk"),
    "disk read-only": Fault(None, None, None, "read_only_disk"),
    "slurmctld": Fault(None, None, None, "controller"),
    "slurmdbd": Fault(None, None, None, "database_daemon"),
    "scontrol": Fault(causes.RANK_CRASH, RANK, "kill", "scontrol"),
}


@dataclass(frozen=True)
class Case:
    """A run of three ranks on three nodes, and what is done to it.

    Attributes
    ----------
    fault
        Of `FAULTS`.
    phase
        Of `PHASES`: where the rank is meanwhile.
    place
        Of `PLACES`: which rank, and which node.
    stage
        ZeRO.
    form
        A job by itself, or an element of an array whose other element nothing is done to.
    slurm
        Version.
    """

    fault: str
    phase: str
    place: str
    stage: int
    form: str
    slurm: str

    @property
    def name(self) -> str:
        """For tables; the version comes first, as in the names of tests that run on both."""
        words = (self.slurm, self.fault, self.phase, self.place, f"ZeRO {self.stage}", self.form)
        return ", ".join(words)


def expected(case: Case) -> tuple[str | None, str | None]:
    """What ends the attempt that is hurt, and what that has to name; None where the run goes on."""
    fault = FAULTS[case.fault]
    if case.fault == "exception" and case.phase == "save":
        # A save that fails is told; the training goes on.
        return None, None
    if case.fault == "exception" and case.phase == "restore":
        # All ranks raise what one of them met.
        return causes.BAD_CHECKPOINT, None
    return fault.kind, fault.blames


def cases() -> list[Case]:
    """Every fault in every phase; the other factors turn, so that all pairs of values are there."""
    forms = (SINGLE, ARRAY)
    return [
        Case(
            fault=fault,
            phase=phase,
            place=list(PLACES)[(i + j) % len(PLACES)],
            stage=STAGES[(i + j) % len(STAGES)],
            form=forms[(i // 2 + j) % len(forms)],
            slurm=VERSIONS[(i + j // 2) % len(VERSIONS)],
        )
        for i, fault in enumerate(FAULTS)
        for j, phase in enumerate(PHASES)
    ]

"""A node's preparation for an attempt: code, network, operators, port."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import tarfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from hpcrun.container.rank_python import RankPython
from hpcrun.errors import HpcrunError
from hpcrun.run import frozen_python
from hpcrun.run.copies import sent_code
from hpcrun.run.copies.environment_copy import EnvironmentCopy
from hpcrun.run.fabric import adapters, compute_ports, link_check
from hpcrun.run.health import python_stacks
from hpcrun.run.node import build_locks, network, op_cache
from hpcrun.run.node.rendezvous_port import PortReservation
from hpcrun.run.protocol.launch import ports_per_rank
from hpcrun.run.protocol.output import say
from hpcrun.run.rank import warm_up
from hpcrun.state import files, permissions, submission_facts
from hpcrun.state.layout import SubmissionPaths, extension_caches
from hpcrun.state.node_layout import ScratchPaths
from hpcrun.state.plan import Plan, RunPlan
from hpcrun.state.spec import profiling
from hpcrun.text import listed

# Twice the bytes that a submission freezes at most.
_MOST_CODE = 200_000_000
# The search for the ranks' own ports begins far from where that for the rendezvous does.
_APART = 128


class NodePreparation:
    """The preparation of one node for each attempt.

    The search for the port begins at ``seed`` plus the attempt's number. ``key`` is that of the
    compiled operators in their cache; None where none are needed.
    """

    def __init__(
        self,
        submission: SubmissionPaths,
        plan: Plan,
        run: RunPlan,
        node: str,
        seed: int,
        environment: EnvironmentCopy | None = None,
    ) -> None:
        self._submission, self._plan, self._run = submission, plan, run
        self._node, self._seed, self._environment = node, seed, environment
        uses_deepspeed = run.entry.kind == "function" or run.deepspeed
        self._builders = op_cache.needed(run) if uses_deepspeed else []
        self._python = RankPython.of(submission, plan, run)
        self._problem: HpcrunError | None = None
        self.key = self._key()
        self._ports: list[PortReservation] = []
        # The fast interface and its adapters, where other nodes are to be reached over them.
        self._link: tuple[str, str | None] | None = None

    def _key(self) -> str | None:
        copy = self._environment
        if not self._python.is_container:
            if not self._builders:
                return None
            if copy is None:
                return op_cache.key(self._builders)
            # Compiled where it is unpacked: ninja builds anew for another place.
            return op_cache.key(self._builders, copy.installation) if copy.trains else None
        if not self._python.is_anywhere:
            # srun alone starts such a container, and DeepSpeed compiles in each attempt.
            return None
        try:
            return op_cache.key_in_container(self._python, self._builders)
        except HpcrunError as error:
            self._problem = error
            return None

    def build(self, given_up: Callable[[], bool]) -> None:
        """Compile DeepSpeed's operators into the cache, unless they are there."""
        assert self.key is not None
        caches = extension_caches(self._submission)
        copy, python, environment = self._environment, self._python, None
        if copy is not None:
            environment = frozen_python.variables(str(copy.path), os.environ)
            python = RankPython(python=("python",))
        built = self.key, self._builders
        op_cache.provide(caches, *built, given_up, python, environment)

    def prepare(
        self, scratch: Path, attempt: int, fabric: dict[str, Any], *, first: bool, alone: bool
    ) -> dict[str, Any]:
        """Unpack the code, find the fabric, copy the compiled operators, reserve the port.

        ``scratch`` is the attempt's node-local directory, ``fabric`` the profile's block. With
        ``first``, the rendezvous is on this node; with ``alone``, there is no other node, so that
        the fabric does not matter. Returns ``node`` (the fields of
        `hpcrun.run.protocol.launch.LaunchNode`) and, if ``first``, the rendezvous' ``port``; the
        ranks' own ports are among the fields of a node that has enough free ones.
        """
        if self._problem is not None:
            raise self._problem
        paths = ScratchPaths(scratch)
        self._unpack(paths.code)
        interface, address = network.fast(fabric)
        reading = adapters.read()
        hca, report = compute_ports.hca_filter(fabric, reading), link_check.report(fabric, reading)
        for finding in (report or {}).get("findings", ()):
            say(f"fabric: {finding['message']}")
        for told in link_check.choices({self._node: report}, {self._node: hca}):
            say(f"fabric: {told}")
        if not alone:
            link = interface, network.usable(hca)
            if problem := network.trouble(*link):
                raise HpcrunError(f"it is cut off from the fabric: {problem}")
            self._link = link
        node: dict[str, Any] = {
            "name": self._node,
            "code": str(paths.code),
            "scratch": str(scratch),
            "interface": interface,
            "address": address,
            "hca": hca,
            "adapters": report,
        }
        if self.key:
            cache = permissions.usable_place(extension_caches(self._submission), self.key)
            op_cache.copy(cache, self.key, paths.extensions)
        if self.key or self._builds_apart():
            node["extensions"] = str(paths.extensions)
        if self._environment is not None:
            node["python"] = str(self._environment.python)
            shutil.copyfile(self._submission.package, paths.package)
        is_warm = self._run.entry.kind == "script" and warm_up.after(self._run) is not None
        wanted = self._run.recovery.hang_after or is_warm
        if os.environ.get(python_stacks.SWITCH) == "0":
            wanted = is_warm = False
        if self._run.entry.kind != "function" and (wanted or self._run.spec.get(profiling.KEY)):
            noted = paths.modules if is_warm and first else None
            python_stacks.write_start_up(paths.start_up, noted)
        answer: dict[str, Any] = {"node": node}
        self.release_ports()
        if first:
            self._ports.append(PortReservation(self._seed + attempt))
            answer["port"] = self._ports[0].port
        if count := self._run.slots * ports_per_rank(self._run.slots):
            # Most programs need none of their own, so a node that has none left is no worse.
            with contextlib.suppress(HpcrunError):
                seed = self._seed + attempt + _APART
                self._ports.append(PortReservation(seed, count, meets=first))
                node["ports"] = self._ports[-1].port
        return answer

    def _builds_apart(self) -> bool:
        """Deal with locks of builds; return whether torch is to build in the attempt's directory.

        A directory that the user chose stays.
        """
        run = self._submission.experiment.run(self._run.number).directory
        environment = dict(os.environ)
        if chosen := self._run.environment.variables.get(build_locks.VARIABLE):
            environment[build_locks.VARIABLE] = chosen.replace("${hpcrun:directory}", str(run))
        locks, own = build_locks.left_behind(environment), build_locks.directory(environment)
        if not locks:
            return False
        found = listed([*map(str, locks)], 3)
        if own is None:
            say(f"{found}: no process here holds it; torch builds in the attempt's own directory")
        elif run in own.parents:
            # No rank of this run is alive, on any node.
            build_locks.remove(locks)
            say(f"removed {found}, left by a build that was ended")
        else:
            say(f"{found}: no process here holds it; torch waits for it unless it is removed")
        return own is None

    def reset(self) -> None:
        """Forget the links of the attempt before."""
        self._link = None

    @property
    def watches_link(self) -> bool:
        """The attempt depends on this node's links to the fabric."""
        return self._link is not None

    def link_trouble(self) -> str | None:
        """Return why this node cannot reach the others; None while its links are up."""
        return network.trouble(*self._link) if self._link else None

    @property
    def ports(self) -> tuple[int, ...]:
        """All ports that are kept for the attempt on this node."""
        return tuple(port for kept in self._ports for port in kept.ports)

    def release_ports(self) -> None:
        while self._ports:
            self._ports.pop().release()

    def _unpack(self, destination: Path) -> None:
        """Unpack the frozen code, and link the data directories that the spec names."""
        shutil.rmtree(destination, ignore_errors=True)
        destination.mkdir()
        frozen = submission_facts.facts(self._submission).get("code")
        archive = self._submission.experiment.frozen_code(frozen)
        if archive is None and frozen:
            raise HpcrunError(f"{self._submission.submission} names no archive of frozen code")
        if archive is not None:
            sent = ScratchPaths(destination.parent).node.sent_code
            archive = sent_code.choose(sent, archive)
            # Not in the first releases of 3.10 and 3.11.
            safely: dict[str, Any] = {"filter": "tar"} if hasattr(tarfile, "tar_filter") else {}
            try:
                with (
                    files.open_stream(archive) as stream,
                    tarfile.open(fileobj=stream, mode="r:gz") as tar,
                ):
                    tar.extractall(destination, members=_below(tar), **safely)
            except (OSError, EOFError, ValueError, tarfile.TarError, zlib.error) as error:
                raise HpcrunError(
                    f"{archive} cannot be unpacked into {destination}: {error}"
                ) from error
        directory = destination / self._plan.directory
        directory.mkdir(parents=True, exist_ok=True)
        for link in self._run.code.link:
            target = destination / self._plan.inside(link)
            target.parent.mkdir(parents=True, exist_ok=True)
            if not target.exists():
                target.symlink_to(self._plan.place(link))


def _below(archive: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """Yield files and links of an archive, each of which stays below where it is unpacked.

    Raises ValueError before one that would not, or would be written through a link; and before
    the archive has taken more room than frozen code does.
    """
    links: set[str] = set()
    left = _MOST_CODE
    for member in archive:
        *above, name = PurePosixPath(member.name).parts
        left -= member.size
        if not (member.isfile() or member.issym()) or member.issparse() or left < 0:
            raise ValueError(f"{member.name!r} is no file of frozen code")
        if member.name.startswith("/") or ".." in (*above, name):
            raise ValueError(f"{member.name!r} would be written elsewhere")
        if not links.isdisjoint(itertools.accumulate((*above, name), "{}/{}".format)):
            raise ValueError(f"{member.name!r} would be written through a link")
        if member.issym():
            links.add("/".join((*above, name)))
        yield member

"""What is expected of a container runtime: see `hpcrun.container.runtimes.ContainerRuntime`."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from hpcrun.container.runtimes import ContainerRuntime, Mount, RuntimeProgram
from hpcrun.extensions import RUNTIMES
from hpcrun.state.environment.environment_block import Container
from hpcrun.testing.expectation import expect, expect_attributes, expecting, name_of

_OPTIONS = ["--one-more", "--and-another=x"]
_FLAGS = (
    *("is_of_srun", "needs_image", "needs_directory", "has_read_only_mounts", "keeps_path"),
    "catches_stop",
)


def check_container_runtime(runtime: Any, **container: Any) -> None:
    """Check that a class is a container runtime: by its command lines, of which none is run.

    ``container`` is what the block ``environment.container`` must have for it, such as an image by
    name; without an image one is made, a directory.
    """
    is_runtime = isinstance(runtime, type) and issubclass(runtime, ContainerRuntime)
    expect(is_runtime, f"{name_of(runtime)} is no class below ContainerRuntime")
    expect_attributes(runtime, RUNTIMES.needs)
    with expecting(f"{name_of(runtime)}()"):
        made = runtime()
    for flag in _FLAGS:
        found = getattr(made, flag)
        expect(isinstance(found, bool), f"{flag} is {found!r}; expected is True or False")
    programs = made.programs
    are_names = isinstance(programs, tuple) and all(
        isinstance(one, str) and one and "/" not in one for one in programs
    )
    expect(are_names, f"programs is {programs!r}; expected is a tuple of names that PATH may have")
    with expecting("fetches('docker://a/b')"):
        fetches = made.fetches("docker://a/b")
    expect(isinstance(fetches, bool), f"fetches(image) is {fetches!r}; expected is True or False")
    with tempfile.TemporaryDirectory() as directory:
        image = Path(directory, "image")
        (image / "usr").mkdir(parents=True)
        given = {"image": str(image), "options": _OPTIONS, **container}
        _RuntimeTrial(made, Container(runtime=None, **given)).run()


class _RuntimeTrial:
    """The command lines of a runtime for one image."""

    def __init__(self, runtime: ContainerRuntime, container: Container) -> None:
        self._runtime, self._container = runtime, container
        self._what = "srun_options" if runtime.is_of_srun else "command_line"
        self._path = f"/opt/bin/{runtime.programs[0]}" if runtime.programs else ""

    def run(self) -> None:
        mounts = [Mount("/tmp", "/tmp"), Mount("/data/a b", "/mnt/data")]  # noqa: S108
        words = self._words(mounts)
        expect(
            words == self._words(mounts), f"{self._what} is another for the same container: {words}"
        )
        if self._path:
            expect(words[:1] == [self._path], f"{self._call(words)} begins without {self._path}")
        for mount in mounts:
            for path in (mount.source, mount.target):
                expect(
                    any(path in word for word in words),
                    f"{self._call(words)} has nothing of the mount {mount.words}",
                )
        expect(
            any(self._container.image in word for word in words),
            f"{self._call(words)} does not name the image {self._container.image}",
        )
        self._expect_options(words)
        if self._runtime.has_read_only_mounts:
            read_only = [mounts[0], replace(mounts[1], read_only=True)]
            expect(
                self._words(read_only) != words,
                f"{self._what} is the same for a mount that is read-only; set "
                "has_read_only_mounts to False if there are none",
            )
        for home in (True, False):
            self._words(mounts, home=home)
        for gpus in ("nvidia", "amd"):
            self._words(mounts, gpus=gpus)

    def _expect_options(self, words: list[str]) -> None:
        options = self._container.options
        places = [words.index(one) if one in words else -1 for one in options]
        expect(
            -1 not in places and places == sorted(places),
            f"{self._call(words)} lacks environment.container.options, {options}, in their order",
        )
        if self._runtime.is_of_srun:
            wrong = [word for word in words if not word.startswith("-")]
            expect(not wrong, f"srun_options has {wrong}, which srun takes for its command")

    def _words(
        self, mounts: list[Mount], *, home: bool = False, gpus: str | None = None
    ) -> list[str]:
        container = replace(self._container, home=home)
        with expecting(f"{self._what} (home: {home}, gpus: {gpus})"):
            if self._runtime.is_of_srun:
                found = self._runtime.srun_options(container, mounts)
            else:
                program = RuntimeProgram(self._path, lambda option: True, gpus)
                found = self._runtime.command_line(program, container, mounts)
        are_words = isinstance(found, list) and all(isinstance(word, str) for word in found)
        expect(are_words and bool(found), f"{self._what} is {found!r}; expected is a list of words")
        return found

    def _call(self, words: list[str]) -> str:
        return f"{self._what}, {words},"

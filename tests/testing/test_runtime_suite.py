"""The suite for container runtimes: hpcrun's own pass it, and it names what is wrong."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

import pytest

from hpcrun.compile.spec import schema
from hpcrun.container.runtimes import Apptainer, ContainerRuntime, Mount, Pyxis, RuntimeProgram
from hpcrun.extensions import RUNTIMES
from hpcrun.state.environment.environment_block import Container
from hpcrun.testing import check_container_runtime

# What a spec says besides for some of them.
BLOCKS: dict[str, dict[str, Any]] = {
    "pyxis": {"image": "nvcr.io#nvidia/pytorch:25.09-py3"},
    "command": {
        "image": "registry/torch:1",
        "command": ["podman", "run", "{mounts}", "--pull=never", "{image}"],
        "options": [],
    },
}


@pytest.mark.parametrize("name", RUNTIMES.own)
def test_own_runtimes(name: str) -> None:
    check_container_runtime(RUNTIMES.load(name), **BLOCKS.get(name, {}))


def test_they_are_those_of_the_spec() -> None:
    words = get_args(schema.hints(Container)["runtime"])[0]
    assert [*get_args(words)] == RUNTIMES.own


class Words(ContainerRuntime):
    """A right one, in one line."""

    programs = ("words",)
    has_read_only_mounts = False

    def command_line(
        self, program: RuntimeProgram, container: Container, mounts: Sequence[Mount]
    ) -> list[str]:
        binds = [f"-v{mount.source}:{mount.target}" for mount in mounts]
        return [program.path, *binds, *container.options, container.image]


class WithoutCommandLine(ContainerRuntime):
    programs = ("words",)


class ProgramThatIsAPath(Words):
    programs = ("/usr/bin/words",)


class ReadOnlyUnsaid(Words):
    has_read_only_mounts = True


class WithoutMounts(Words):
    def command_line(self, program: Any, container: Any, mounts: Any) -> list[str]:
        return super().command_line(program, container, mounts[:1])


class WithoutOptions(Words):
    def command_line(self, program: Any, container: Any, mounts: Any) -> list[str]:
        line = super().command_line(program, container, mounts)
        return [word for word in line if not word.startswith("--")]


class WithoutImage(Words):
    def command_line(self, program: Any, container: Any, mounts: Any) -> list[str]:
        return super().command_line(program, container, mounts)[:-1]


class WithoutProgram(Words):
    def command_line(self, program: Any, container: Any, mounts: Any) -> list[str]:
        return super().command_line(program, container, mounts)[1:]


class OfAText(Words):
    def command_line(self, program: Any, container: Any, mounts: Any) -> Any:
        return " ".join(super().command_line(program, container, mounts))


class NeverTheSame(Words):
    count = 0

    def command_line(self, program: Any, container: Any, mounts: Any) -> list[str]:
        self.count += 1
        return [*super().command_line(program, container, mounts), str(self.count)]


class WithoutAmd(Apptainer):
    def command_line(self, program: Any, container: Any, mounts: Any) -> list[str]:
        flags = {"nvidia": ["--gpus"], None: []}
        return [*super().command_line(program, container, mounts), *flags[program.gpus]]


class CommandOfSrun(Pyxis):
    def srun_options(self, container: Container, mounts: Sequence[Mount]) -> list[str]:
        return [*super().srun_options(container, mounts), "sh"]


def test_a_right_one() -> None:
    check_container_runtime(Words)


@pytest.mark.parametrize(
    ("runtime", "said"),
    [
        (dict, "dict is no class below ContainerRuntime"),
        (WithoutCommandLine, "WithoutCommandLine has no command_line"),
        (ProgramThatIsAPath, "expected is a tuple of names that PATH may have"),
        (ReadOnlyUnsaid, "the same for a mount that is read-only"),
        (WithoutMounts, r"has nothing of the mount /data/a b:/mnt/data"),
        (WithoutOptions, r"lacks environment.container.options, \['--one-more'"),
        (WithoutImage, "does not name the image"),
        (WithoutProgram, "begins without /opt/bin/words"),
        (OfAText, "expected is a list of words"),
        (NeverTheSame, "is another for the same container"),
        (WithoutAmd, r"command_line \(home: False, gpus: amd\) raises KeyError"),
        (CommandOfSrun, r"srun_options has \['sh'\], which srun takes for its command"),
    ],
)
def test_it_says_what_is_wrong(runtime: Any, said: str) -> None:
    with pytest.raises(AssertionError, match=said):
        check_container_runtime(runtime)

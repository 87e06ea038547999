"""The checks of ``environment.container``."""

from __future__ import annotations

from typing import Any

from hpcrun.compile.source.problems import Reporter
from hpcrun.container import runtimes
from hpcrun.container.runtimes import ContainerRuntime, Mount
from hpcrun.extensions import RUNTIMES
from hpcrun.host import is_there

# The runtime whose words stand in the spec.
_ANY = "command"


def settle(container: dict[str, Any], report: Reporter) -> None:
    """Make the paths of a container absolute, in place, and report what it lacks."""
    name = container["runtime"]
    if name is None:
        report.at(
            "runtime", f"is missing; accepted are {', '.join(RUNTIMES.names)}", "what your site has"
        )
    # As one whose images are files, to find what else is wrong.
    runtime = RUNTIMES.load(name or "bubblewrap")()
    _settle_image(container, runtime, report)
    if not container["python"].strip():
        report.at("python", "is empty; accepted is a Python of the image, such as python3")
    elif "/" in container["python"] and not container["python"].startswith("/"):
        report.at("python", f"found {container['python']!r}; accepted is a name, or all of a path")
    for index, text in enumerate(container["mounts"]):
        try:
            mount = Mount.parse(text)
        except ValueError as error:
            report.at(f"mounts.{index}", f"found {text!r}; {error}")
            continue
        source = str(report.mark(f"mounts.{index}").path(mount.source))
        # A relative source without a target has none that the container could know.
        target = source if mount.target == mount.source else mount.target
        container["mounts"][index] = Mount(source, target, mount.read_only).words
        if mount.read_only and not runtime.has_read_only_mounts:
            hint = "without :ro; or another runtime"
            report.at(f"mounts.{index}", f"found {text!r}; {name} has no such mounts", hint)
    if name == _ANY and not container["command"]:
        hint = 'such as [podman, run, --rm, --network=host, "{mounts}", "{image}"]'
        report.at("command", "is empty; accepted are the words before the program", hint)
    if name != _ANY and container["command"]:
        report.at("command", f"has no meaning with runtime: {name}", "remove it")


def _settle_image(container: dict[str, Any], runtime: ContainerRuntime, report: Reporter) -> None:
    """Make the path of the image absolute, unless the runtime fetches it by its name."""
    image, name = container["image"], container["runtime"]
    # What names no registry is a file to Apptainer, wherever it is started.
    by_name = runtime.fetches(image)
    if not image.strip():
        if runtime.needs_image:
            report.at("image", "is missing; accepted is the image that the ranks run in")
    elif "://" in image and not by_name:
        short = image.partition("://")[2]
        file = f"image.{runtime.image_suffix}"
        hint = f"`ch-image pull {short} && ch-convert {short} {file}` makes one"
        found = f"found {image!r}; {name} starts {runtime.image_kinds}, and fetches none"
        report.at("image", found, hint)
    elif runtimes.is_path(image) or not by_name:
        path = report.mark("image").path(image)
        container["image"] = str(path)
        if not is_there(path.exists):
            report.note("image", f"there is no file {image!r} on this machine", "jobs need it")

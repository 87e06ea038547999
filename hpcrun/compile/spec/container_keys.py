"""The checks of ``environment.container``."""

from __future__ import annotations

from typing import Any

from hpcrun.compile.source.problems import Reporter
from hpcrun.container import runtimes
from hpcrun.container.runtimes import Mount


def settle(container: dict[str, Any] | None, report: Reporter) -> None:
    """Make the paths of a container absolute, in place, and report what it lacks."""
    if container is None:
        return
    image, runtime = container["image"], container["runtime"]
    if runtime is None:
        accepted = ", ".join((*sorted(runtimes.PROGRAMS), "pyxis", "command"))
        report.at("runtime", f"is missing; accepted are {accepted}", "what your site has")
    # What names no registry is a file to Apptainer, wherever it is started.
    by_name = runtime in ("pyxis", "command") or (runtime == "apptainer" and "://" in image)
    if not image.strip():
        if runtime != "command":
            report.at("image", "is missing; accepted is the image that the ranks run in")
    elif "://" in image and not by_name:
        kinds, end = "a directory", "dir"
        if runtime == "charliecloud":
            kinds, end = "a directory or a squashfs", "sqfs"
        name = image.partition("://")[2]
        hint = f"`ch-image pull {name} && ch-convert {name} image.{end}` makes one"
        report.at("image", f"found {image!r}; {runtime} starts {kinds}, and fetches none", hint)
    elif runtimes.is_path(image) or not by_name:
        container["image"] = str(report.mark("image").path(image))
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
        if mount.read_only and runtime in ("charliecloud", "command"):
            hint = "without :ro; or another runtime"
            report.at(f"mounts.{index}", f"found {text!r}; {runtime} has no such mounts", hint)
    if runtime == "command" and not container["command"]:
        hint = 'such as [podman, run, --rm, --network=host, "{mounts}", "{image}"]'
        report.at("command", "is empty; accepted are the words before the program", hint)
    if runtime != "command" and container["command"]:
        report.at("command", f"has no meaning with runtime: {runtime}", "remove it")

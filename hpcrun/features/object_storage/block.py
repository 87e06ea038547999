"""The spec's block ``object_storage``, and its checks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from hpcrun.shared_dataclass import field
from hpcrun.state.spec.spec_dataclass import spec_dataclass

if TYPE_CHECKING:
    from hpcrun.compile.source.marked_tree import Reporter
    from hpcrun.state.plan import RunPlan

NAME = "object_storage"
# The scheme of a place -> the packages that the job's Python needs for it.
LIBRARIES = {"s3": ("fsspec", "s3fs"), "file": ("fsspec",)}
FORMS = "s3://BUCKET/PREFIX or file:///DIRECTORY"
# By these fsspec's S3 takes a secret that the spec would show to everybody.
_SECRETS = frozenset({"key", "secret", "token", "password"})
_WHERE_SECRETS_BELONG = (
    "put AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY into environment.secrets_file, or name a "
    "profile of ~/.aws by options.profile"
)


@spec_dataclass
class ObjectStorage:
    """Copies of a session's finished checkpoints, made in the background; see
    docs/object-storage.md. One that the root has lost comes back from there as an attempt
    begins."""

    to: str | None = None
    """``s3://BUCKET/PREFIX`` or ``file:///DIRECTORY``. Below it each run has a directory of its
    own, ``EXPERIMENT/RUN-IDENTITY``. Null copies nothing."""

    options: dict[str, Any] = field(default_factory=dict)
    """What fsspec's file system takes, such as ``endpoint_url`` or ``profile``. No keys or
    passwords: these come from ``environment.secrets_file``, the environment or ``~/.aws``."""

    keep: int | None = None
    """How many of the newest copies stay there; null for all."""

    wait: str = "00:10:00"
    """How long the end of the run waits for the last copy, at most, where Slurm leaves the time."""


def asked_copies(spec: Mapping[str, Any]) -> ObjectStorage | None:
    """Return the block of a resolved spec; None where it asks for no copies."""
    found = spec.get(NAME) or {}
    return ObjectStorage(**found) if found.get("to") is not None else None


def needs(run: RunPlan) -> dict[str, str]:
    """Return the packages that the copies of a run need -> the key that asks for them.

    None in a container: there the Python beside it copies, of which the job says what it lacks.
    """
    block = asked_copies(run.spec)
    if block is None or run.container is not None:
        return {}
    return dict.fromkeys(LIBRARIES[str(block.to).partition("://")[0]], f"{NAME}.to")


def check(data: Mapping[str, Any], report: Reporter) -> None:
    """Report every problem of the block of a resolved spec; nothing where there is none."""
    block = asked_copies(data)
    if block is None:
        for key in ("options", "keep", "wait"):
            report.note_alone(f"{NAME}.{key}", f"{NAME}.to")
        return
    from hpcrun.slurm.parse import parse_duration

    to = str(block.to)
    scheme, separator, rest = to.partition("://")
    if not separator or scheme not in LIBRARIES:
        hint = "other stores of fsspec are not tested" if separator else None
        report.at(f"{NAME}.to", f"found {to!r}; accepted is {FORMS}", hint)
    elif scheme == "file" and (not rest.startswith("/") or not rest.strip("/")):
        hint = "a path of its own, as file:///archive/me"
        report.at(f"{NAME}.to", f"found {to!r}; accepted is {FORMS}", hint)
    elif scheme == "s3" and not rest.partition("/")[0]:
        report.at(f"{NAME}.to", f"found {to!r}, which names no bucket; accepted is {FORMS}")
    elif any(part == ".." for part in rest.split("/")) or {*"?#*[\0"} & {*rest}:
        found = f"found {to!r}; accepted is a plain path, without .., ?, #, * and ["
        report.at(f"{NAME}.to", found)
    elif "@" in rest.partition("/")[0]:
        found = "found a user or a password in an address, which everybody who reads the plan sees"
        report.at(f"{NAME}.to", found, _WHERE_SECRETS_BELONG)
    if scheme == "file" and block.options:
        found = f"found {', '.join(sorted(block.options))}; a directory takes none"
        report.at(f"{NAME}.options", found)
    for key in _secrets(block.options):
        found = "is a secret, which everybody who may read the plan would see"
        report.at(f"{NAME}.options.{key}", found, _WHERE_SECRETS_BELONG)
    if not parse_duration(block.wait):
        report.at(f"{NAME}.wait", f'found {block.wait!r}; accepted is a time such as "00:10:00"')
    _check_entry(data, report)


def _check_entry(data: Mapping[str, Any], report: Reporter) -> None:
    """Report a program without a session: what it saves by itself would not be copied."""
    if not (isinstance(data.get("entry"), list) or data.get("batch_script")):
        return
    what = "batch script" if data.get("batch_script") else "command"
    report.at(
        NAME,
        f"copies the checkpoints of hpcrun.session(), and the entry is a {what}, whose own saves "
        "would not be copied",
        "name the function or the script that has the session as the entry, or copy in the program",
    )


def _secrets(options: Mapping[str, Any], above: str = "") -> Iterator[str]:
    # Agents of thousands of nodes import this module, to read a plan.
    from hpcrun.policy import secret_names

    for name, value in options.items():
        if isinstance(value, Mapping):
            yield from _secrets(value, f"{above}{name}.")
        elif value not in (None, "") and (name in _SECRETS or secret_names.is_name(name)):
            yield f"{above}{name}"

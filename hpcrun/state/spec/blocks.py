"""A frozen spec's blocks, with the names, types and defaults of their dataclasses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpcrun.state.spec.experiment import (
        Checkpoint,
        Code,
        Environment,
        Notify,
        Objective,
        Recovery,
        Resources,
        Telemetry,
    )

_BLOCKS = frozenset(
    {
        *("resources", "checkpoint", "recovery", "environment"),
        *("objective", "notify", "telemetry", "code"),
    }
)
# A plan that was frozen before such a key existed does without what it switches on.
_ABSENT: dict[str, dict[str, Any]] = {
    "recovery": {"hang_after": None, "warm_after": None},
    "telemetry": {"every": None},
}


class SpecBlocks:
    """Typed views of a spec's blocks, each made when it is first asked for.

    Nothing is checked: the compiler did that. Keys that this hpcrun does not know are ignored, so
    that plans of other versions can be read.

    Attributes
    ----------
    spec
        The resolved spec as plain data.
    """

    def __init__(self, spec: dict[str, Any]) -> None:
        self.spec = spec

    if TYPE_CHECKING:
        resources: Resources
        checkpoint: Checkpoint
        recovery: Recovery
        environment: Environment
        objective: Objective | None
        notify: Notify
        telemetry: Telemetry
        code: Code
    else:

        def __getattr__(self, name):
            if name not in _BLOCKS:
                raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
            # Readers of a plan's head alone are spared the import.
            from hpcrun.state.spec import experiment

            kind = getattr(experiment, name.capitalize())
            given = self.spec.get(name)
            block = None
            if given is not None or name != "objective":
                data = {**_ABSENT.get(name, {}), **(given or {})}
                known = kind.__dataclass_fields__
                block = kind(**{key: value for key, value in data.items() if key in known})
            self.__dict__[name] = block
            return block

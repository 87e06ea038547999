"""Optuna as searches use it: quiet, and with the space of a plan in its forms."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hpcrun.errors import HpcrunError

if TYPE_CHECKING:
    import optuna


def load() -> Any:
    """Import Optuna, quiet; raise HpcrunError without it."""
    try:
        import optuna
    except ImportError as error:
        raise HpcrunError(
            f"Optuna cannot be imported: {error}", hint="pip install 'hpcrun[search]'"
        ) from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    # It warns of each option that may change.
    warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
    return optuna


def distribution(form: Mapping[str, Any]) -> optuna.distributions.BaseDistribution:
    """Return Optuna's distribution of a key's form, whose name stands before its condition."""
    from optuna import distributions

    (name, bounds), *_ = form.items()
    if name == "choice":
        return distributions.CategoricalDistribution(bounds)
    low, high = bounds
    if name.startswith("int"):
        return distributions.IntDistribution(low, high, log=name == "int_loguniform")
    return distributions.FloatDistribution(low, high, log=name == "loguniform")

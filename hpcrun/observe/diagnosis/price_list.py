"""Money and energy of hours: the ``prices`` of a cluster profile, as a plan has frozen them.

`hpcrun estimate`, ``hpcrun status --cost`` and ``hpcrun report`` ask the same functions.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from hpcrun.shared_dataclass import dataclass, field

GPU = "GPU-hours"
CPU = "CPU-hours"
_MOST = 1e12
_WORDS = re.compile(r"[^\W_]+")


@dataclass(frozen=True)
class PriceList:
    """What an hour costs and takes at a site; None where its profile does not say."""

    currency: str = ""
    gpu_hour: float | None = None
    cpu_hour: float | None = None
    gpu_types: Mapping[str, float] = field(default_factory=dict)
    """Type of GPU -> price of its hour."""
    gpu_watts: float | None = None
    cpu_watts: float | None = None

    @classmethod
    def of(cls, cluster: Mapping[str, Any]) -> PriceList:
        """Return the prices in a profile, which may be another user's, without senseless ones."""
        block = cluster.get("prices")
        if not isinstance(block, Mapping):
            return cls()
        types = block.get("gpu_types")
        pairs = types.items() if isinstance(types, Mapping) else ()
        currency = block.get("currency")
        return cls(
            currency if isinstance(currency, str) else "",
            _price(block.get("gpu_hour")),
            _price(block.get("cpu_hour")),
            {str(name): price for name, one in pairs if (price := _price(one)) is not None},
            _price(block.get("gpu_watts")),
            _price(block.get("cpu_watts")),
        )

    def hour(self, unit: str, gpu_type: str | None = None) -> float | None:
        """Return the price of one hour of a unit (`GPU` or `CPU`); None if there is none."""
        if unit != GPU:
            return self.cpu_hour
        by_type = {_key(name): price for name, price in self.gpu_types.items()}
        return by_type.get(_key(gpu_type or ""), self.gpu_hour)

    def money(self, hours: float, unit: str, gpu_type: str | None = None) -> float | None:
        """Return what hours cost; None if the profile has no such price."""
        price = self.hour(unit, gpu_type)
        return None if price is None else hours * price


def money_text(money: float, currency: str) -> str:
    """``1,234.50 EUR``; more digits below a hundredth."""
    number = f"{money:,.2f}" if money >= 0.01 or not money else f"{money:.2g}"
    return f"{number} {currency}".rstrip()


def kilowatt_hours(hours: float, watts: float | None) -> float | None:
    """Return the energy of hours at a power in watts, in kWh."""
    return None if watts is None else hours * watts / 1000


def _key(name: str) -> str:
    return "".join(_WORDS.findall(name.lower()))


def _price(value: Any) -> float | None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if is_number and 0 <= value < _MOST else None

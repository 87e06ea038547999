from __future__ import annotations

from tests.run.conftest import place as place

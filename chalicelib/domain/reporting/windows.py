"""How far back people may ask: bounds that the API's parameters and the services behind them share."""

from __future__ import annotations

from typing import Final

MAX_DAYS: Final = 366  # of the fleet's ledger
DEFAULT_MINUTES: Final = 60  # of a run's curves
MAX_MINUTES: Final = 60 * 24 * 30

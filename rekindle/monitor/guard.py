"""What is never caught: the user's own wish to end."""

from __future__ import annotations

from typing import Final

PASS: Final = (KeyboardInterrupt, SystemExit, GeneratorExit)

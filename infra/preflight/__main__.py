"""`python -m infra.preflight`."""

from __future__ import annotations

import sys

from infra.preflight.checks import main

if __name__ == "__main__":
    sys.exit(main())

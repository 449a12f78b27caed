"""`python -m infra.site`: writes docs/reference and the policy's schema from the code. Prints what has changed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from infra.options import no_options
from infra.site.reference import PAGES

_ROOT: Final = Path(__file__).resolve().parents[2]


def main() -> int:
    """Write what has changed."""
    for path, page_text in PAGES.items():
        page, text = _ROOT / path, page_text()
        if not page.is_file() or page.read_text(encoding="utf-8") != text:
            page.parent.mkdir(parents=True, exist_ok=True)
            page.write_text(text, encoding="utf-8")
            sys.stdout.write(f"{path}\n")
    return 0


if __name__ == "__main__":
    no_options("infra.site", __doc__)
    sys.exit(main())

"""Names of the standard library that the tests use and Python 3.10 lacks: a plugin of `make test-pythons`.

What runs there is the training side, which does without them (rekindle/compat.py).
"""

from __future__ import annotations

import datetime
import enum
import typing

if not hasattr(datetime, "UTC"):
    import typing_extensions

    from rekindle import compat

    datetime.UTC = compat.UTC
    enum.StrEnum = compat.StrEnum
    for name in ("Self", "assert_never"):
        setattr(typing, name, getattr(typing_extensions, name))

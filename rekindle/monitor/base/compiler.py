"""Keep torch.compile from tracing the monitor: where a compiled function calls it, that is one graph break.

Without this our own functions are compiled too, and again for each new state of theirs.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rekindle.monitor.base.guard import PASS


def hide_from_compiler(owner: object, names: Sequence[str]) -> None:
    """These methods of `owner` are not traced. Changes nothing where torch is not loaded or cannot do that; no error.

    Source: torch.compiler.disable is there from torch 2.1 on; its argument `reason` only from 2.7 on.
    """
    disable = getattr(getattr(sys.modules.get("torch"), "compiler", None), "disable", None)
    if disable is None:
        return
    try:
        for name in names:
            setattr(owner, name, disable(getattr(owner, name)))
    except PASS:
        raise
    except BaseException:  # of torch's own: a graph more is no reason to watch nothing
        return

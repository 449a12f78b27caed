"""Log-line signatures and the XID table, as data; a classifier of log excerpts; root causes distinguished from echoes.

`classify(text)` gives one excerpt its verdict; `root_cause(findings)` says which of many findings the others follow
from. Pure, standard library only: it runs in the service, beside the training, and in the operator's command line.

The names are loaded at their first use: a user of the fault classes alone does not pay for the rules.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rekindle.protocol.signals import FaultClass
    from rekindle.signatures.causes import Cause, Echo, Finding, root_cause
    from rekindle.signatures.classifier import BENIGN, Classifier, Verdict, classify
    from rekindle.signatures.labels import LABELS, CausalClass, Label
    from rekindle.signatures.responses import FirstResponse

__all__ = [
    "BENIGN",
    "LABELS",
    "CausalClass",
    "Cause",
    "Classifier",
    "Echo",
    "FaultClass",
    "Finding",
    "FirstResponse",
    "Label",
    "Verdict",
    "classify",
    "root_cause",
]

_HOMES = {
    **dict.fromkeys(("Cause", "Echo", "Finding", "root_cause"), "rekindle.signatures.causes"),
    **dict.fromkeys(("BENIGN", "Classifier", "Verdict", "classify"), "rekindle.signatures.classifier"),
    **dict.fromkeys(("LABELS", "CausalClass", "Label"), "rekindle.signatures.labels"),
    "FaultClass": "rekindle.protocol.signals",
    "FirstResponse": "rekindle.signatures.responses",
}


def __getattr__(name: str) -> Any:
    """A public name, from its module (PEP 562)."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value

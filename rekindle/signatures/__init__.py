"""Log-line signatures and the XID table, as data; a classifier of log excerpts; root causes told from echoes.

`classify(text)` gives one excerpt its verdict; `root_cause(findings)` says which of many findings the others follow
from. Pure, standard library only: it runs in the service, beside the training, and in the operator's command line.
"""

from __future__ import annotations

from rekindle.signatures.classifier import BENIGN, Classifier, Verdict, classify
from rekindle.signatures.faults import FaultClass
from rekindle.signatures.labels import LABELS, CausalClass, Label
from rekindle.signatures.responses import FirstResponse
from rekindle.signatures.root_cause import Cause, Echo, Finding, root_cause

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

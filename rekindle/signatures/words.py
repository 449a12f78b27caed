"""What faults and Actions are called in sentences: one wording for the service's reports and for what people look at.

Only words; what is decided upon are the names themselves. A name that is not here is shown as the words that it is made
of.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

_CAPITAL: Final = re.compile(r"[A-Z]")

# Faults whose name alone does not say what is meant.
FAULTS: Final[Mapping[str, str]] = {
    "non_finite": "non-finite loss (NaN or Inf)",
    "operator_order": "a person's order",
    "job_missing": "run gone",
    "unclear": "not clear yet",
}

# Actions whose name alone does not state what is done.
# Source: the docstrings of domain/model/action.py and domain/model/node_actions.py.
ACTIONS: Final[Mapping[str, str]] = {
    "RequestCheckpoint": "ask for an emergency checkpoint",
    "StopJob": "stop the run",
    "ResubmitJob": "start the run again",
    "AdoptAttempt": "take over the platform's own new start",
    "CordonNode": "give the node no more jobs",
    "ExcludeNodes": "keep bad nodes out of the next start",
    "ResizeJob": "change how many nodes the run takes",
    "ReportNode": "hand the node to its own Incident",
    "QuarantineCheckpoint": "mark a checkpoint as not to be used",
    "Notify": "tell people",
    "AskApproval": "ask people",
    "RebootNode": "reboot the node",
    "ReplaceNode": "replace the node",
    "CheckNode": "start a deep health check of the node",
    "UncordonNode": "give the node jobs again",
    "MoveRuns": "save the runs on the node, and move them",
}


def fault_word(fault: str) -> str:
    """`loss_spike` is `loss spike`."""
    return FAULTS.get(fault, fault.replace("_", " "))


def action_word(action: str) -> str:
    """`StopJob` is `stop the run`, `RebootHost` would be `reboot host`."""
    return ACTIONS.get(action) or _CAPITAL.sub(r" \g<0>", action).strip().lower()


def labelled_action(action: str) -> str:
    """`StopJob` is `stop the run (StopJob)`: in words, and as people will find it in a policy."""
    return f"{action_word(action)} ({action})"

"""What the figures of the ledger and the like are called on a page, and under which heading they stand. Only data.

A name that is not here is shown as the service writes it, with spaces for underscores: a figure that is new in the
service is on the page before the console knows it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from rekindle.protocol.quantities import NAMES, heading

TIMES: Final = "Times"
COST: Final = "Lost and saved"
RUN: Final = "The run"

# Source: docs/ledger.md. Name on the wire -> what it is called.
TITLES: Final[Mapping[str, str]] = {
    **{name: heading(name) for name in NAMES},
    "onset_at": "Began",
    "onset_from": "Began, according to",
    "step_s": "Time of one step",
    "instances": "Instances",
    "gpus": "GPUs",
    "began_at": "First attempt began",
    "wall_s": "Wall time",
    "ettr": "Effective training time ratio (ETTR)",
    "counterfactual": "Without Rekindle",
    "requeue": "An automatic requeue",
    "person": "A person",
    "assumes": "Assumed",
    "waiting_s": "Waiting",
    "recompute_s": "Training again",
    "lost_by_stage_s": "Training time lost, by stage",
    "lost_by_fault_s": "Training time lost, by fault",
    "lost_stages": "Training time lost, by stage",
    "stages": "Stages",
    "phase": "Stage",
    "at": "At",
    "after_s": "After its onset",
    "jobs": "Jobs",
    "is_builtin": "Built in",
    "modified_at": "Stored",
}

# Source: docs/ledger.md#one-incident, in its order.
HEADINGS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("onset_at", "onset_from", "mttd_s", "mttr_s", "elapsed_s"), TIMES),
    **dict.fromkeys(
        ("steps_lost", "steps_saved", "lost_s", "gpu_hours_lost", "gpu_hours_saved", "dollars_lost", "dollars_saved"),
        COST,
    ),
    **dict.fromkeys(("step_s", "instances", "gpus", "began_at", "wall_s"), RUN),
}

"""The reference pages that are written from the code: which there are, and their text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from infra import costs, policy_docs
from infra.site import (
    reference_alarms,
    reference_api,
    reference_cli,
    reference_doctor,
    reference_iam,
    reference_lines,
    reference_metrics,
    reference_notice,
    reference_playbooks,
    reference_proving,
    reference_rules,
    reference_signatures,
    reference_slurm,
)

# The page's path in the repository -> what makes its text.
PAGES: Final[Mapping[str, Callable[[], str]]] = {
    module.PAGE: module.page_text
    for module in (
        costs,
        policy_docs,
        reference_alarms,
        reference_api,
        reference_cli,
        reference_doctor,
        reference_iam,
        reference_lines,
        reference_metrics,
        reference_notice,
        reference_playbooks,
        reference_proving,
        reference_rules,
        reference_signatures,
        reference_slurm,
    )
} | {policy_docs.SCHEMA: policy_docs.schema_text}

"""What a check is: a function that yields findings, with its row of docs/reference/doctor.md beside it. Pure.

The function's docstring is the row's text: its first paragraph says what the check looks at, its second why. A function
that only helps a check yields findings without a check's id; the check that yields them on gives them its own.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final, Generic, ParamSpec

from rekindle.compat import StrEnum
from rekindle.doctor.base.findings import Finding, error, unknown

BOTO: Final = "botocore, CreateCluster"
SBATCH: Final = "sbatch(1); tried on 22.05"
AUTO_RESUME_GUIDE: Final = "SageMaker guide, sagemaker-hyperpod-resiliency-slurm-auto-resume"
EC2_API: Final = "EC2 API reference"
REFERENCE: Final = "SageMaker guide, sagemaker-hyperpod-ref"
PREREQUISITES: Final = "SageMaker guide, sagemaker-hyperpod-prerequisites"
SCALING: Final = "SageMaker guide, sagemaker-hyperpod-scaling-slurm"
PLANS: Final = "SageMaker guide, reserve-capacity-with-training-plans"
OURS: Final = "this repository"


class Area(StrEnum):
    """What has to be given for a check to be made."""

    FILES = "Any file"
    REQUEST = "`--config`"
    PROVISIONING = "`--provisioning`"
    ACCOUNT = "`--config` or `--live`, in the AWS account"
    LIVE = "`--live`"
    SCRIPT = "`--script`"
    STACK = "Rekindle's own stack (`rekindle doctor`)"
    RUNS = "Protected Jobs (`rekindle doctor`)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One check, as its page shows it. `twin`: the check of AWS's validate-config.py that it stands for.

    validate-config.py is in 1.architectures/5.sagemaker-hyperpod of aws-samples/awsome-distributed-training.
    """

    id: str
    area: Area
    source: str
    twin: str
    what: str
    why: str

    def error(self, path: str, message: str) -> Finding:
        """A finding made outside the check's function."""
        return replace(error(path, message), check=self.id)

    def unknown(self, path: str, message: str) -> Finding:
        """A finding made outside the check's function."""
        return replace(unknown(path, message), check=self.id)


CHECKS: Final[dict[str, Row]] = {}  # by id, in the order in which their modules are imported
_P = ParamSpec("_P")
_Q = ParamSpec("_Q")


class Check(Generic[_P]):
    """A check's function; what it yields carries the check's id."""

    def __init__(self, row: Row, function: Callable[_P, Iterator[Finding]]) -> None:
        self.row: Final = row
        self._function: Final = function

    def __call__(self, *args: _P.args, **kwargs: _P.kwargs) -> Iterator[Finding]:
        """The findings."""
        for finding in self._function(*args, **kwargs):
            yield finding if finding.check else replace(finding, check=self.row.id)

    def also(self, function: Callable[_Q, Iterator[Finding]]) -> Check[_Q]:
        """Another function of the same check, for what is looked at elsewhere."""
        return Check(self.row, function)


def row(id: str, area: Area, source: str, text: str, twin: str = "") -> Row:
    """A row in the table. `text`: what is looked at, an empty line, why."""
    if id in CHECKS:
        raise ValueError(f"two checks have the id {id}")
    what, why = (" ".join(part.split()).rstrip(".") for part in text.split("\n\n")[:2])
    CHECKS[id] = Row(id=id, area=area, source=source, twin=twin, what=what, why=why)
    return CHECKS[id]


def check(
    id: str,
    area: Area,
    source: str,
    *,
    twin: str = "",
) -> Callable[[Callable[_P, Iterator[Finding]]], Check[_P]]:
    """Make a function a check."""

    def decorate(function: Callable[_P, Iterator[Finding]]) -> Check[_P]:
        return Check(row(id, area, source, inspect.getdoc(function) or "", twin), function)

    return decorate

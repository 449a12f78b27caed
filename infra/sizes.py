"""`python -m infra.sizes`: files over 400 lines, folders over 25 files, records over 20 fields, each with its reason.

Product code only. One that is not in its table fails, and so does a row for one that has become small: the tables are
what a reader may ask about, not a list to add to. The limits are the house's (CONTRIBUTING).
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from infra import words
from infra.options import no_options

MAX_LINES: Final = 400
MAX_FILES: Final = 25
MAX_FIELDS: Final = 20

_TABLE: Final = (
    "a table of data with a source on each row; cut in two, a reader would have to know in which half to look"
)
_FORMAT: Final = "one format that two programs read and write: its types and its reader are changed together"
_ONE_STATE: Final = "one class whose methods share its state; a part of them alone cannot be understood or tested"
_PHASE: Final = "the rules of one phase in the order in which they are asked; the order is what a reader looks for"
_AS_AWS: Final = "one AWS service as its callers see it; its operations share their store"

LONG: Final[Mapping[str, str]] = {
    "benchmarks/healthy_kinds.py": _TABLE,
    "chalicelib/domain/model/codec.py": "one recursive reader and writer: each kind of type is one pair of functions",
    "chalicelib/ingest/hyperpod_catalogue.py": _TABLE,
    "chalicelib/domain/rules/node/repair.py": _PHASE,
    "chalicelib/domain/rules/run/opening.py": _PHASE,
    "chalicelib/domain/rules/run/verifying.py": _PHASE,
    "chalicelib/services/observe/observer.py": "one observation: what is read, in which order",
    "chalicelib/services/perform/perform.py": "one handler per Action, with the fences that all of them share",
    "chalicelib/services/sweep/sweep.py": "one round of the sweep, in its order, under one budget of time",
    "infra/grants.py": _TABLE,
    "localcloud/aws/authorization.py": _AS_AWS,
    "localcloud/engine/lambdas.py": _AS_AWS,
    "localcloud/aws/sagemaker.py": _AS_AWS,
    "localcloud/cloud.py": "the embedded cloud's parts and how they are connected, in the order in which they start",
    "localcloud/platforms/hyperpod.py": _AS_AWS,
    "localcloud/platforms/sagemaker_simulated.py": _ONE_STATE,
    "localcloud/replay/run.py": "one replay from its first event to its report",
    "localcloud/replay/world.py": _ONE_STATE,
    "localcloud/slurm/lab.py": _ONE_STATE,
    "localcloud/slurm/model.py": _ONE_STATE,
    "rekindle/doctor/table.py": _TABLE,
    "rekindle/monitor/live.py": _ONE_STATE,
    "rekindle/monitor/saving/negotiation.py": "one protocol among the ranks; each step builds on the one before",
    "rekindle/protocol/cluster/documents.py": _FORMAT,
    "rekindle/protocol/mailbox.py": _FORMAT,
    "rekindle/slurm_agent/slurm/commands.py": "every command of Slurm's that the agent runs, and its failures",
    "simulation/judging/judge.py": "the counts, in the order of `counts.py`; each reads the same truth",
    "simulation/runs/training.py": _ONE_STATE,
    "simulation/slurm/cluster.py": _ONE_STATE,
    "simulation/stages/world.py": "the world's parts and how they are connected, in the order in which they start",
}
WIDE: Final[Mapping[str, str]] = {
    "chalicelib/domain/model/incident.py:Incident": "what each phase and subject reads; the rest is in its parts",
    "chalicelib/domain/model/observation.py:AttemptView": "one attempt as two sources show it, weighed at once",
    "chalicelib/domain/model/observation.py:Observation": "a field for each thing that is read",
    "chalicelib/domain/model/platform.py:Platform": "one capability a field: a question that rules ask",
    "chalicelib/domain/model/repair.py:NodeRepair": "all that a node's Incident alone remembers",
    "localcloud/platforms/simulated_run.py:Script": "one field for each thing that a test may change",
    "localcloud/slurm/model.py:SimJob": "one field for each thing that Slurm keeps of a job",
    "rekindle/console/charts.py:Chart": "all that a template draws: it reads one record",
    "rekindle/doctor/base/subject.py:Group": "one field for each fact of an instance group that the checks read",
    "rekindle/protocol/cluster/documents.py:AttemptDoc": "the wire form of one start: a field for each fact of Slurm's",
    "rekindle/slurm_agent/reading/jobs.py:Job": "one field for each column that squeue is asked for",
    "simulation/runs/truth.py:Attempt": "one field for each fact about an attempt as it truly is",
}
CROWDED: Final[Mapping[str, str]] = {}


def main() -> int:
    """Returns the exit status: 1 where anything is without a reason, or a reason without its cause."""
    files = [path for path in words.files() if path.endswith(".py")]
    texts = {path: (words.ROOT / path).read_text(encoding="utf-8") for path in files}
    lines = {path: len(text.splitlines()) for path, text in texts.items()}
    crowds = Counter(str(Path(path).parent) for path in files)
    fields = dict(one for path, text in texts.items() for one in records(path, text))
    faults = [
        *compared("lines", lines, LONG, MAX_LINES),
        *compared("files", crowds, CROWDED, MAX_FILES),
        *compared("fields", fields, WIDE, MAX_FIELDS),
    ]
    for fault in faults:
        print(fault)
    return 1 if faults else 0


def compared(unit: str, found: Mapping[str, int], reasons: Mapping[str, str], limit: int) -> Iterator[str]:
    """A line for each that is over the limit without a reason, and for each reason without its cause."""
    for name, count in sorted(found.items()):
        if count > limit and name not in reasons:
            yield f"{name}: {count} {unit}, more than {limit}: split it, or give the reason in infra/sizes.py"
    for name in sorted(reasons):
        if found.get(name, 0) <= limit:
            yield f"{name}: {found.get(name, 0)} {unit}: its row in infra/sizes.py is not needed"


def records(path: str, text: str) -> Iterator[tuple[str, int]]:
    """The classes of data of a file, each with its number of fields."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ClassDef) and any("dataclass" in ast.unparse(one) for one in node.decorator_list):
            yield f"{path}:{node.name}", sum(isinstance(one, ast.AnnAssign) for one in node.body)


if __name__ == "__main__":
    no_options("infra.sizes", __doc__)
    sys.exit(main())

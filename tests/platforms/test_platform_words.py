"""A platform's words stand in its own folder: rules, services and routes ask capabilities (docs/adr/0131).

Exempt are the platforms' folders. LISTED holds the files that still break the rule, each with what is to become of it;
a file that breaks it no more must leave the list, and no other may enter.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
WORDS: Final = re.compile(
    r"slurm|sbatch|\bsrun\b|scontrol|squeue|scancel|\bsinfo\b"
    r"|kubernetes|kubectl|\bk8s\b|\beks\b|training[ _-]?job|trainingjob",
    re.IGNORECASE,
)
FOLDERS: Final = ("chalicelib/platforms/slurm/", "chalicelib/platforms/training_job/")

WIRING: Final = "names each platform once, to put it together"
WIRE: Final = "reads a message whose words are fixed by its sender"
AWS: Final = "a SageMaker API, metric or tag, whose name AWS has given"
FACE: Final = "a route, schema or setting that people use: to be named by platform in the API's table"
OWN: Final = "one platform's own table: moves to its folder once services get it through the Scheduler"
WORDING: Final = "sentences for people and sources of facts that name one platform"
NODES: Final = "nodes are read and repaired through one platform's agent: to be asked of Platform, as runs are"

LISTED: Final = {
    "app.py": FACE,
    "chalicelib/api/fields.py": FACE,
    "chalicelib/api/parts.py": FACE,
    "chalicelib/api/operations/clusters.py": FACE,
    "chalicelib/api/operations/incidents.py": FACE,
    "chalicelib/api/operations/job_answers.py": FACE,
    "chalicelib/api/operations/jobs.py": FACE,
    "chalicelib/api/operations/ledger.py": FACE,
    "chalicelib/api/operations/switches.py": FACE,
    "chalicelib/aws/cloudwatch/alarms.py": AWS,
    "chalicelib/aws/s3/cluster_state.py": WIRE,
    "chalicelib/aws/sagemaker/cluster_nodes.py": AWS,
    "chalicelib/aws/sagemaker/tags.py": AWS,
    "chalicelib/bootstrap/__init__.py": WIRING,
    "chalicelib/bootstrap/api.py": FACE,
    "chalicelib/bootstrap/adapters.py": WIRING,
    "chalicelib/bootstrap/recovery.py": WIRING,
    "chalicelib/domain/drills/world.py": OWN,
    "chalicelib/domain/fault_specs/crashes.py": OWN,
    "chalicelib/domain/fault_specs/nodes.py": OWN,
    "chalicelib/domain/faults/failure_reasons.py": OWN,
    "chalicelib/domain/faults/slurm_states.py": OWN,
    "chalicelib/domain/model/node.py": NODES,
    "chalicelib/domain/model/repair.py": NODES,
    "chalicelib/domain/node/memory.py": NODES,
    "chalicelib/domain/node/remembering.py": NODES,
    "chalicelib/domain/policy/groups.py": FACE,
    "chalicelib/domain/reporting/paste.py": WORDING,
    "chalicelib/domain/rules/node/beginning.py": NODES,
    "chalicelib/domain/rules/node/draining.py": NODES,
    "chalicelib/domain/rules/node/ladder.py": NODES,
    "chalicelib/domain/rules/node/node.py": NODES,
    "chalicelib/domain/rules/node/orders.py": NODES,
    "chalicelib/domain/rules/node/repairing.py": NODES,
    "chalicelib/domain/rules/node/returning.py": NODES,
    "chalicelib/domain/run/before_stop.py": WORDING,
    "chalicelib/domain/run/submission.py": OWN,
    "chalicelib/ingest/agent.py": WIRE,
    "chalicelib/ingest/alarm.py": AWS,
    "chalicelib/ingest/detail_types.py": WIRE,
    "chalicelib/ingest/dispatch.py": WIRING,
    "chalicelib/ingest/ec2.py": WORDING,
    "chalicelib/ingest/fields.py": AWS,
    "chalicelib/ingest/hang_events.py": WIRE,
    "chalicelib/ingest/health.py": AWS,
    "chalicelib/ingest/hyperpod_catalogue.py": WIRE,
    "chalicelib/ingest/logs.py": WIRE,
    "chalicelib/ingest/training_job.py": WIRE,
    "chalicelib/ingest/training_logs.py": AWS,
    "chalicelib/platforms/registry.py": WIRING,
    "chalicelib/ports/platforms.py": WORDING,
    "chalicelib/services/intake/node_map.py": OWN,
    "chalicelib/services/intake/ownership.py": WORDING,
    "chalicelib/services/intake/registration.py": WORDING,
    "chalicelib/services/observe/nodes.py": NODES,
    "chalicelib/services/observe/repair_load.py": NODES,
    "chalicelib/services/observe/run_nodes.py": NODES,
    "chalicelib/services/operator/clusters.py": FACE,
    "chalicelib/services/reporting/curves.py": FACE,
    "chalicelib/services/operator/orders.py": FACE,
    "chalicelib/services/perform/cluster_orders.py": WIRE,
    "chalicelib/services/sweep/clusters.py": NODES,
    "chalicelib/services/reporting/job_metrics.py": AWS,
}


def service_files() -> Iterator[tuple[str, str]]:
    for path in (ROOT / "app.py", *sorted((ROOT / "chalicelib").rglob("*.py"))):
        name = path.relative_to(ROOT).as_posix()
        if not name.startswith(FOLDERS):
            yield name, path.read_text()


def test_a_platform_is_named_in_its_own_folder_and_in_the_listed_files_alone() -> None:
    breaking = {name for name, text in service_files() if WORDS.search(text)}
    assert breaking - LISTED.keys() == set(), "ask a capability of model/platform.py instead of naming a platform"
    assert LISTED.keys() - breaking == set(), "these break the rule no more: take them off the list"


def test_no_rule_of_a_run_names_a_platform() -> None:
    """Rules, guards and decide() are not on the list, and do not come back."""
    folders = ("decide.py", "decision/", "guards/", "rules/run/")
    assert not [name for name in LISTED if name.removeprefix("chalicelib/domain/").startswith(folders)]


def test_no_attempt_s_name_tells_its_platform() -> None:
    """Names are attributed once, by ports.Schedulers.of_name; the wire checks what it is sent."""
    wire = {"chalicelib/aws/s3/cluster_state.py", "chalicelib/ingest/agent.py"}
    assert {name for name, text in service_files() if "is_slurm(" in text} == wire

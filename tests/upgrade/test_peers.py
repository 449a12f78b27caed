"""A service beside monitors and agents of another version: they are updated apart, so each reads what the other writes.

`written_by_0_1.json` holds documents as 0.1 writes them, each with every field: `written` is the text, `least` the same
with only what a reader insists on, as an older version may write it, and `least_means` what a reader takes that for. A
later version that writes something more gets a file of its own; what a released version wrote is never changed.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from chalicelib.ingest.dispatch import parse
from rekindle.protocol.cluster.documents import (
    AgentDoc,
    AttemptDoc,
    FollowedDoc,
    FoundDoc,
    JobSpec,
    NodesDoc,
    SlurmState,
)
from rekindle.protocol.cluster.lease import LeaseDoc, StandbyDoc
from rekindle.protocol.cluster.orders import Order, OrderResult, Verb
from rekindle.protocol.launch_orders import AttemptOrder, Plan
from rekindle.protocol.mailbox import CheckpointReply, CheckpointRequest, Fence, Heartbeat
from rekindle.protocol.manifests import Hashes, Manifest
from rekindle.protocol.reports import RankReport
from rekindle.protocol.summaries import HostSummary
from rekindle.protocol.wire import MailboxError
from tests.recovery.test_slurm_playbooks import JOB, slurm

READERS: dict[str, Any] = {
    "AgentDoc": AgentDoc,
    "AttemptDoc": AttemptDoc,
    "CheckpointReply": CheckpointReply,
    "CheckpointRequest": CheckpointRequest,
    "Fence": Fence,
    "FollowedDoc": FollowedDoc,
    "FoundDoc": FoundDoc,
    "Hashes": Hashes,
    "Heartbeat": Heartbeat,
    "HostSummary": HostSummary,
    "JobSpec": JobSpec,
    "LeaseDoc": LeaseDoc,
    "Manifest": Manifest,
    "NodesDoc": NodesDoc,
    "Order": Order,
    "OrderResult": OrderResult,
    "Plan": Plan,
    "RankReport": RankReport,
    "StandbyDoc": StandbyDoc,
}
WRITTEN = json.loads((Path(__file__).parent / "written_by_0_1.json").read_text(encoding="utf-8"))
DOCUMENTS: dict[str, dict[str, Any]] = WRITTEN["documents"]
EVENTS = Path(__file__).parents[2] / "events"
# Members that hold names of the user's, or paths: there an unknown one is a new entry, not a new field.
MAPPINGS = {"data", "environment", "evidence", "files", "hashes", "options", "shown", "stacks"}
NEW = "new_in_a_later_version"
# Members of 0.1's documents that are younger than the others, and that an older version would not have written.
YOUNGER = {"judged_step", "epoch", "host", "standbys", "serial", "gpus", "booted_at", "instance_id"}
YOUNGER |= {"sibling", "is_held_by_user", "step_exit_code", "step_exit_signal", "died_of", "places", "ending_since"}
YOUNGER |= {"barred", "queue_losses"}
# Members that 0.1 wrote and that nothing reads any more: an older agent's are passed over.
GONE = {"JobSpec": {"hashes", "script_path"}}


def newer(value: Any) -> Any:
    """What a later version may write: each object has one more member."""
    if isinstance(value, list):
        return [newer(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        name: item if name in MAPPINGS and isinstance(item, dict) else newer(item) for name, item in value.items()
    } | {NEW: {"v": 2, "text": "unknown"}}


def older(value: Any) -> Any:
    """What an earlier version may have written: nothing where there is nothing to say, and no younger member."""
    if isinstance(value, list):
        return [older(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {name: older(item) for name, item in value.items() if item is not None and name not in YOUNGER}


def said(document: dict[str, Any]) -> dict[str, Any]:
    """Without null members: null and absent are the same to every reader."""
    return {name: value for name, value in document.items() if value is not None}


def still_read(kind: str, document: dict[str, Any]) -> dict[str, Any]:
    """Without the members that are gone."""
    return {name: value for name, value in document.items() if name not in GONE.get(kind, ())}


def test_every_document_has_its_text() -> None:
    assert DOCUMENTS.keys() == READERS.keys()


@pytest.mark.parametrize("name", READERS)
def test_what_0_1_wrote_is_read_and_written_again_as_it_was(name: str) -> None:
    text = DOCUMENTS[name]["written"]
    assert json.loads(READERS[name].from_json(text).to_json()) == still_read(name, json.loads(text))


def test_a_manifest_s_digest_is_that_of_0_1() -> None:
    """A rank's hashes name the manifest that they are of by it, whichever version looks."""
    assert Manifest.from_json(DOCUMENTS["Manifest"]["written"]).digest == WRITTEN["manifest_digest"]


def test_what_a_new_attempt_is_told_by_its_environment_is_read_and_written_again_as_it_was() -> None:
    told = WRITTEN["order_environment"]
    assert AttemptOrder.from_env(told).to_env() == told
    assert AttemptOrder.from_env({**told, "REKINDLE_NEW": "unknown"}).to_env() == told


@pytest.mark.parametrize("name", READERS)
def test_members_that_a_later_version_adds_change_nothing(name: str) -> None:
    text = DOCUMENTS[name]["written"]
    assert READERS[name].from_json(json.dumps(newer(json.loads(text)))) == READERS[name].from_json(text)


@pytest.mark.parametrize("name", READERS)
def test_a_document_with_only_what_a_reader_insists_on_is_read(name: str) -> None:
    read = READERS[name].from_json(json.dumps(DOCUMENTS[name]["least"]))
    assert said(json.loads(read.to_json())) == said(still_read(name, DOCUMENTS[name]["least_means"]))


@pytest.mark.parametrize("name", READERS)
def test_a_form_that_is_not_known_is_refused_by_its_number(name: str) -> None:
    with pytest.raises(MailboxError) as refused:
        READERS[name].from_json(json.dumps({**json.loads(DOCUMENTS[name]["written"]), "v": 2}))
    assert refused.value.field == "v"


@pytest.mark.parametrize("name", WRITTEN["optional_in_events"])
def test_an_event_of_an_older_or_newer_peer_is_read(name: str) -> None:
    event = json.loads((EVENTS / f"{name}.json").read_text(encoding="utf-8"))
    assert parse({**event, "detail": newer(event["detail"])}) == parse(event)
    optional = set(WRITTEN["optional_in_events"][name])
    least = {member: value for member, value in event["detail"].items() if member not in optional}
    assert [signal.kind for signal in parse({**event, "detail": least})] == [signal.kind for signal in parse(event)]


class PeerClient:
    """A client of a monitor or an agent of another version: what it writes, and what it reads of the service's."""

    def __init__(self, client: Any, change: Callable[[Any], Any]) -> None:
        self._client = client
        self._change = change

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def put_object(self, *, Body: Any, **arguments: Any) -> Any:
        return self._client.put_object(Body=self._changed(Body), **arguments)

    def get_object(self, **arguments: Any) -> Any:
        answer = self._client.get_object(**arguments)
        return {**answer, "Body": BytesIO(self._changed(answer["Body"].read()))}

    def put_events(self, *, Entries: list[dict[str, Any]]) -> Any:
        entries = [{**entry, "Detail": self._changed(entry["Detail"].encode()).decode()} for entry in Entries]
        return self._client.put_events(Entries=entries)

    def receive_message(self, **arguments: Any) -> Any:
        answer = self._client.receive_message(**arguments)
        messages = answer.get("Messages", [])
        return {
            **answer,
            "Messages": [{**message, "Body": self._changed(message["Body"].encode()).decode()} for message in messages],
        }

    def _changed(self, body: bytes) -> bytes:
        try:
            document = json.loads(body)
        except ValueError:
            return body
        return json.dumps(self._change(document)).encode() if isinstance(document, dict) else body


@pytest.mark.long
@pytest.mark.parametrize("change", [newer, older], ids=["newer", "older"])
def test_a_run_whose_monitor_and_agent_are_of_another_version_is_recovered(change: Callable[[Any], Any]) -> None:
    with slurm(peer=lambda client: PeerClient(client, change)) as s:
        s.sim.freeze(JOB)
        s.recovered()
        assert s.verbs() == [Verb.HOLD, Verb.REQUEUE]
        assert s.sim.runs[f"{JOB}.r1"].first_step == 41


@pytest.mark.long
@pytest.mark.parametrize("change", [newer, older], ids=["newer", "older"])
def test_a_job_is_submitted_anew_by_an_agent_of_another_version(change: Callable[[Any], Any]) -> None:
    with slurm(peer=lambda client: PeerClient(client, change), is_requeueable=False) as s:
        s.sim.model.end(s.job, SlurmState.FAILED, reason="NonZeroExitCode", code=1, detail="RuntimeError: boom")
        s.recovered()
        assert s.verbs() == [Verb.SUBMIT]
        assert s.sim.runs[f"{JOB}-a2"].first_step == 41

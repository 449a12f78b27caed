"""Orders remembered by their keys, and policies stored under a lease: over the fakes and over real adapters on moto."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from moto import mock_aws

from chalicelib.aws.dynamodb.small_items import KEPT, DynamoAnswers
from chalicelib.aws.ssm.policies import SsmPolicies
from chalicelib.aws.ssm.policy_documents import LEASE, SsmPolicyDocumentStore
from chalicelib.domain.model.errors import InvalidPolicy, Outdated, UnknownEntity, VersionConflict
from chalicelib.domain.policy.document import DEFAULT_POLICY
from chalicelib.ports.operator import AnswerMemory, EarlierOrder, PolicyDocumentStore
from chalicelib.services.operator.policy_documents import MAX_BYTES, PolicyDocuments
from localcloud.cloud import STACK, Cloud
from tests.adapters.conftest import TABLE, make_client, real_shelf
from tests.adapters.samples import T0
from tests.fakes.paging import FakeAnswers, FakePolicyShelf
from tests.fakes.world import FakeClock

PREFIX = "/rekindle/policies"


@pytest.fixture
def aws() -> Iterator[None]:
    with mock_aws():
        yield


@pytest.fixture(params=["fake", "dynamodb"])
def memory(request: pytest.FixtureRequest, aws: None) -> AnswerMemory:
    if request.param == "fake":
        return FakeAnswers()
    real_shelf()
    return DynamoAnswers(make_client("dynamodb"), table=TABLE)


def test_an_order_is_new_once_and_its_answer_is_kept(memory: AnswerMemory) -> None:
    assert memory.begin("k", fingerprint="f", now=T0) is None
    assert memory.begin("k", fingerprint="f", now=T0) == EarlierOrder(same=True, answer=None)
    answer = {"status": 202, "body": {"what": "opened", "step": 1.5, "none": None}, "headers": {}}
    memory.finish("k", answer=answer)
    assert memory.begin("k", fingerprint="f", now=T0) == EarlierOrder(same=True, answer=answer)
    assert memory.begin("k", fingerprint="other", now=T0) == EarlierOrder(same=False, answer=answer)
    assert memory.begin("k2", fingerprint="f", now=T0) is None


def test_after_two_weeks_a_key_is_free_again_though_its_item_is_still_there(aws: None) -> None:
    real_shelf()
    memory = DynamoAnswers(make_client("dynamodb"), table=TABLE)
    assert memory.begin("k", fingerprint="f", now=T0) is None
    assert memory.begin("k", fingerprint="f", now=T0 + KEPT - timedelta(seconds=1)) is not None
    assert memory.begin("k", fingerprint="other", now=T0 + KEPT + timedelta(seconds=2)) is None


def ssm_shelf() -> SsmPolicyDocumentStore:
    return SsmPolicyDocumentStore(make_client("ssm"), prefix=PREFIX, table_client=make_client("dynamodb"), table=TABLE)


@pytest.fixture(params=["fake", "ssm"])
def shelf(request: pytest.FixtureRequest, aws: None) -> PolicyDocumentStore:
    if request.param == "fake":
        return FakePolicyShelf()
    real_shelf()
    return ssm_shelf()


def test_a_document_is_written_only_in_place_of_the_version_that_was_read(shelf: PolicyDocumentStore) -> None:
    assert shelf.stored("p") is None
    assert shelf.write("p", "{}", replaces=0, now=T0).version == 1
    assert shelf.write("p", '{"skip_steps":5}', replaces=1, now=T0).version == 2
    for replaces in (0, 1, 3):
        with pytest.raises(Outdated) as caught:
            shelf.write("p", "{}", replaces=replaces, now=T0)
        assert caught.value.present == 2
    stored = shelf.stored("p")
    assert stored is not None
    assert (stored.version, stored.text) == (2, '{"skip_steps":5}')
    with pytest.raises(Outdated):
        shelf.write("new", "{}", replaces=1, now=T0)


def test_all_documents_are_listed(shelf: PolicyDocumentStore) -> None:
    for number in range(12):
        shelf.write(f"p{number:02d}", "{}", replaces=0, now=T0)
    assert [record.name for record in shelf.listing()] == [f"p{number:02d}" for number in range(12)]


def test_while_one_writes_nobody_else_does_and_a_writer_that_died_holds_it_up_for_a_minute(aws: None) -> None:
    real_shelf()
    made = ssm_shelf()
    held = made._lease("p", T0)
    with pytest.raises(VersionConflict):
        made.write("p", "{}", replaces=0, now=T0 + LEASE - timedelta(seconds=1))
    assert made.write("p", "{}", replaces=0, now=T0 + LEASE + timedelta(seconds=1)).version == 1
    made._release("p", held)  # the dead one comes back: it holds nothing any more
    assert made.write("p", "[]", replaces=1, now=T0 + LEASE + timedelta(seconds=1)).version == 2


def test_who_writes_past_the_api_in_the_same_instant_is_noticed(aws: None) -> None:
    real_shelf()
    made = ssm_shelf()
    made.write("p", "{}", replaces=0, now=T0)
    client = make_client("ssm")

    def between(**_: Any) -> None:
        client.meta.events.unregister("before-call.ssm.PutParameter", between)
        make_client("ssm").put_parameter(Name=f"{PREFIX}/p", Value='{"by":"hand"}', Type="String", Overwrite=True)

    client.meta.events.register("before-call.ssm.PutParameter", between)
    beside = SsmPolicyDocumentStore(client, prefix=PREFIX, table_client=make_client("dynamodb"), table=TABLE)
    with pytest.raises(Outdated, match="another hand"):
        beside.write("p", "{}", replaces=1, now=T0)


@pytest.fixture
def documents(shelf: PolicyDocumentStore) -> PolicyDocuments:
    return PolicyDocuments(documents=shelf, clock=FakeClock())


def test_the_built_in_policy_is_there_before_anybody_has_stored_one(documents: PolicyDocuments) -> None:
    assert documents.listing() == [{"name": "default", "version": 0, "is_builtin": True, "modified_at": None}]
    got = documents.get("default")
    assert (got["document"], got["version"], got["problem"]) == ({}, 0, None)
    assert got["effective"]["budgets"]["max_attempts"] == DEFAULT_POLICY.budgets.max_attempts
    with pytest.raises(UnknownEntity):
        documents.get("other")


def test_what_is_put_is_what_the_service_reads(aws: None) -> None:
    real_shelf()
    clock = FakeClock()
    documents = PolicyDocuments(documents=ssm_shelf(), clock=clock)
    stored = documents.put("mine", {"budgets": {"max_attempts": 7}, "playbooks": {"hang": {"tries": 2}}}, replaces=0)
    assert (stored["version"], stored["effective"]["budgets"]["max_attempts"]) == (1, 7)
    assert SsmPolicies(make_client("ssm"), prefix=PREFIX, clock=clock).load("mine").budgets.max_attempts == 7
    assert (
        documents.put("mine", {"budgets": {"max_attempts": 7}, "playbooks": {"hang": {"tries": 2}}}, replaces=0)[
            "version"
        ]
        == 1
    )
    with pytest.raises(Outdated):
        documents.put("mine", {"budgets": {"max_attempts": 8}}, replaces=0)


@pytest.mark.parametrize(
    ("document", "field"),
    [
        ({"budgets": {"max_attempts": 0}}, "budgets.max_attempts"),
        ({"playbooks": {"hang": {"tries": "many"}}}, "playbooks.hang.tries"),
        ({"playbooks": {"bad luck": {}}}, "playbooks.bad luck"),
        ({"resubmission": {"backoff_s": [0, -1]}}, "resubmission.backoff_s[1]"),
        ({"name": "other"}, "name"),
        ({"misspelt": 1}, "misspelt"),
        ({"timing": {"hang_deadline_s": 301}}, "timing.hang_deadline_s"),
        ({"timing": {"look_min_s": 5}}, "timing.look_min_s"),
    ],
)
def test_a_document_that_the_service_could_not_read_is_not_stored(
    documents: PolicyDocuments, document: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidPolicy) as caught:
        documents.put("mine", document, replaces=0)
    assert caught.value.field == field
    verdict = documents.validate(document, name="mine")
    assert (verdict["valid"], [problem["field"] for problem in verdict["problems"]]) == (False, [field])
    with pytest.raises(UnknownEntity):
        documents.get("mine")


def test_every_problem_of_a_document_is_told_at_once(documents: PolicyDocuments) -> None:
    wrong = {
        "budgets": {"max_attempts": 0, "max_restarts_per_day": "many", "max_rolbacks": 1, "max_rollbacks": 2},
        "resubmission": {"backoff_s": [-1]},
        "timing": 5,
        "misspelt": 1,
        "playbooks": {"hang": {"tries": -1, "response": "pray"}},
    }
    fields = {problem["field"] for problem in documents.validate(wrong, name="mine")["problems"]}
    assert fields == {
        "budgets.max_attempts",
        "budgets.max_restarts_per_day",
        "budgets.max_rolbacks",
        "resubmission.backoff_s[0]",
        "timing",
        "misspelt",
        "playbooks.hang.tries",
        "playbooks.hang.response",
    }
    assert documents.validate({"loss": {"skip_steps": 5}}, name="mine")["effective"]["loss"]["skip_steps"] == 5


def test_a_document_too_large_for_the_store_is_refused(documents: PolicyDocuments) -> None:
    when = {"actions": ["StopJob", "ResubmitJob"], "faults": [row.fault.value for row in DEFAULT_POLICY.playbooks]}
    document = {
        "approvals": {"rules": [{"when": when, "deadline_s": 600, "default": "deny"} for _ in range(20)]},
        "windows": [
            {"name": f"window {number:02d} {'n' * 40}", "from": "22:00", "to": "02:00"} for number in range(20)
        ],
    }
    assert len(json.dumps(document, separators=(",", ":"))) > MAX_BYTES
    assert documents.validate(document, name="mine")["valid"]
    with pytest.raises(InvalidPolicy, match="bytes"):
        documents.put("mine", document, replaces=0)


def test_two_braces_in_a_text_refer_to_no_parameter() -> None:
    """Parameter Store refuses a value with a reference in it; the embedded cloud does so, too."""
    with Cloud() as cloud:
        shelf = SsmPolicyDocumentStore(
            cloud.client("ssm"), prefix=PREFIX, table_client=cloud.client("dynamodb"), table=STACK
        )
        documents = PolicyDocuments(documents=shelf, clock=FakeClock())
        document = {"windows": [{"name": "{{ssm:secret}} {{{ \\{{", "from": "22:00", "to": "02:00"}]}
        assert documents.put("mine", document, replaces=0)["document"] == document
        assert documents.put("mine", document, replaces=0)["version"] == 1  # the same order again


def test_a_difference_is_told_field_by_field(documents: PolicyDocuments) -> None:
    documents.put("mine", {"budgets": {"max_attempts": 7}, "loss": {"skip_steps": 5}}, replaces=0)
    said = documents.diff(
        "mine", {"budgets": {"max_attempts": 9}, "loss": {"skip_steps": 5}, "playbooks": {"hang": {"tries": 4}}}
    )
    assert said["version"] == 1
    assert {change["field"]: (change["now"], change["then"]) for change in said["changes"]}["budgets.max_attempts"] == (
        7,
        9,
    )
    assert {change["field"] for change in said["changes"]} == {"budgets.max_attempts", "playbooks.hang.tries"}
    assert (
        documents.diff("mine", {"budgets": {"max_attempts": 7}, "loss": {"skip_steps": 5}, "version": "v9"})["changes"]
        == []
    )
    assert documents.diff("brand-new", {})["changes"] == []


def test_what_was_stored_by_hand_and_cannot_be_read_is_shown_with_its_problem(aws: None) -> None:
    real_shelf()
    client = make_client("ssm")
    documents = PolicyDocuments(documents=ssm_shelf(), clock=FakeClock())
    for text, problem in (("{", "JSON"), ("[]", "object"), ('{"budgets": {"max_attempts": 0}}', "max_attempts")):
        client.put_parameter(Name=f"{PREFIX}/hand", Value=text, Type="String", Overwrite=True)
        got = documents.get("hand")
        assert problem in got["problem"]
        assert got["effective"] is None
    assert "max_attempts" in documents.diff("hand", {})["problem"]
    assert documents.put("hand", {}, replaces=3)["problem"] is None

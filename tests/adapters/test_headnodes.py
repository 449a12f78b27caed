"""Whiteboards and queues: both implementations of ports.HeadNodes keep the same contract; what S3's alone must bear."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import pytest

from chalicelib.aws.s3.cluster_state import QUEUE_ATTRIBUTES, S3HeadNodes
from chalicelib.domain.model.errors import DependencyUnavailable, Permanent
from chalicelib.domain.model.known import Known, Unknown
from chalicelib.ports.platforms import HeadNodes
from rekindle.protocol.cluster.documents import AgentDoc, AttemptDoc, NodeFacts, NodesDoc, SlurmState
from rekindle.protocol.cluster.names import agent_key, answer_key, attempt_key, nodes_key, order_key, queue_name
from rekindle.protocol.cluster.orders import Order, OrderResult, Outcome, Verb
from tests.adapters.conftest import make_client
from tests.fakes.headnodes import FakeHeadNodes
from tests.fakes.world import START, FakeClock

BUCKET, STACK, CLUSTER, ATTEMPT = "stack-mailbox", "rekindle", "ml", "slurm.ml.123"


@dataclass
class Board:
    """An implementation, and the agent's hand on its whiteboard."""

    head_nodes: HeadNodes
    clock: FakeClock
    put: Callable[[str, bytes], None]
    answer: Callable[[OrderResult], None]
    sent: Callable[[], list[Order]]
    calls: Counter[str] = field(default_factory=Counter)

    def heartbeat(self, *, age_s: float = 0, read_age_s: float | None = 0) -> None:
        now = self.clock.now()
        at = now - timedelta(seconds=age_s)
        read_at = None if read_age_s is None else now - timedelta(seconds=read_age_s)
        doc = AgentDoc(cluster=CLUSTER, agent_id="a-1", at=at, started_at=START, read_at=read_at)
        self.put(agent_key(CLUSTER), doc.to_json())

    def show(self, state: SlurmState = SlurmState.RUNNING) -> None:
        doc = AttemptDoc(
            attempt=ATTEMPT, cluster=CLUSTER, slurm_job=123, restart=0, state=state, seen_at=self.clock.now()
        )
        self.put(attempt_key(ATTEMPT), doc.to_json())


def an_order(**changes: Any) -> Order:
    order = Order(
        token="cancel.slurm.ml.123.0",
        verb=Verb.CANCEL,
        cluster=CLUSTER,
        issued_at=START,
        expires_at=START + timedelta(minutes=15),
        attempt=ATTEMPT,
        slurm_job=123,
    )
    return replace(order, **changes)


def an_answer(outcome: Outcome = Outcome.DONE) -> OrderResult:
    return OrderResult(
        token=an_order().token, verb=Verb.CANCEL, cluster=CLUSTER, outcome=outcome, at=START, attempt=ATTEMPT
    )


def fake_board() -> Board:
    clock = FakeClock()
    fake = FakeHeadNodes(clock)

    def put(key: str, body: bytes) -> None:
        if key == agent_key(CLUSTER):
            fake.agents[CLUSTER] = AgentDoc.from_json(body)
        elif key == nodes_key(CLUSTER):
            fake.node_docs[CLUSTER] = NodesDoc.from_json(body)
        else:
            fake.show(AttemptDoc.from_json(body))

    def answer(said: OrderResult) -> None:
        fake.answers[said.token] = said

    return Board(head_nodes=fake, clock=clock, put=put, answer=answer, sent=lambda: list(fake.sent))


def real_board() -> Board:
    clock = FakeClock()
    s3, sqs = make_client("s3"), make_client("sqs")
    s3.create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": "us-west-2"})
    calls: Counter[str] = Counter()

    def count(model: Any, **_: Any) -> None:
        calls[model.name] += 1

    for client, service in ((s3, "s3"), (sqs, "sqs")):
        client.meta.events.register(f"before-call.{service}", count)

    def put(key: str, body: bytes) -> None:
        s3.put_object(Bucket=BUCKET, Key=key, Body=body)
        calls.clear()

    def sent() -> list[Order]:
        found: list[Order] = []
        url = sqs.get_queue_url(QueueName=queue_name(STACK, CLUSTER))["QueueUrl"]
        while messages := sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10, WaitTimeSeconds=0).get("Messages"):
            found += [Order.from_json(message["Body"]) for message in messages]
        return found

    return Board(
        head_nodes=S3HeadNodes(s3, sqs, bucket=BUCKET, stack=STACK, clock=clock),
        clock=clock,
        put=put,
        answer=lambda said: put(answer_key(CLUSTER, said.token), said.to_json()),
        sent=sent,
        calls=calls,
    )


@pytest.fixture(params=["fake", "s3"])
def board(request: pytest.FixtureRequest, aws: None) -> Board:
    return fake_board() if request.param == "fake" else real_board()


@pytest.fixture
def real(aws: None) -> Board:
    return real_board()


# ---- the contract ----------------------------------------------------------------------------------------------------


def test_where_nobody_has_reported_everything_is_unknown(board: Board) -> None:
    assert isinstance(board.head_nodes.agent(CLUSTER), Unknown)
    assert isinstance(board.head_nodes.nodes(CLUSTER), Unknown)
    with pytest.raises(DependencyUnavailable, match="ever reported"):
        board.head_nodes.attempt(ATTEMPT)
    assert board.head_nodes.clusters() == ()


def test_an_agent_that_lives_knows_what_there_is_and_what_there_is_not(board: Board) -> None:
    board.heartbeat(age_s=179, read_age_s=179)
    assert board.head_nodes.attempt(ATTEMPT) is None
    board.show()
    doc = board.head_nodes.attempt(ATTEMPT)
    assert doc is not None
    assert (doc.slurm_job, doc.state) == (123, SlurmState.RUNNING)
    assert board.head_nodes.clusters() == (CLUSTER,)


def test_the_attempts_that_were_written_of_last_are_listed(board: Board) -> None:
    assert board.head_nodes.newest_attempts(CLUSTER, limit=8) == ()
    board.heartbeat()
    board.show()
    assert board.head_nodes.newest_attempts(CLUSTER, limit=8) == (ATTEMPT,)
    assert board.head_nodes.newest_attempts("another", limit=8) == ()
    assert board.head_nodes.newest_attempts(CLUSTER, limit=0) == ()


@pytest.mark.parametrize(("age_s", "read_age_s"), [(181, 0), (0, 181), (0, None)])
def test_a_silent_agent_and_an_unread_slurm_make_everything_unknown(
    board: Board, age_s: float, read_age_s: float | None
) -> None:
    board.show()
    board.put(nodes_key(CLUSTER), NodesDoc(cluster=CLUSTER, seen_at=START).to_json())
    board.heartbeat(age_s=age_s, read_age_s=read_age_s)
    with pytest.raises(DependencyUnavailable):
        board.head_nodes.attempt(ATTEMPT)
    assert isinstance(board.head_nodes.nodes(CLUSTER), Unknown)
    assert isinstance(board.head_nodes.agent(CLUSTER), Known)  # its last word stands, with its age


def test_nodes_are_read_whole(board: Board) -> None:
    board.heartbeat()
    assert isinstance(board.head_nodes.nodes(CLUSTER), Unknown)  # none told yet is not "no nodes"
    facts = NodeFacts(name="gpu-1", state="idle", instance_id="i-0a1b2c3d4e5f60718", jobs=(123,))
    board.put(nodes_key(CLUSTER), NodesDoc(cluster=CLUSTER, seen_at=START, nodes=(facts,)).to_json())
    nodes = board.head_nodes.nodes(CLUSTER)
    assert isinstance(nodes, Known)
    assert nodes.value.nodes == (replace(facts, seen_at=START),)


def test_an_order_waits_for_its_queue_and_then_for_its_answer(board: Board) -> None:
    with pytest.raises(DependencyUnavailable, match="queue"):
        board.head_nodes.order(an_order())
    board.head_nodes.prepare(CLUSTER)
    board.head_nodes.prepare(CLUSTER)
    assert board.head_nodes.order(an_order()) is None
    assert board.sent() == [an_order()]
    assert board.head_nodes.ordered(CLUSTER, an_order().token) == (an_order(), None)
    board.answer(an_answer())
    assert board.head_nodes.order(an_order()) == an_answer()
    assert board.head_nodes.ordered(CLUSTER, an_order().token) == (an_order(), an_answer())


def test_the_first_order_of_a_token_is_the_one_that_is_sent_again(board: Board) -> None:
    board.head_nodes.prepare(CLUSTER)
    board.head_nodes.order(an_order())
    later = an_order(issued_at=START + timedelta(hours=2), expires_at=START + timedelta(hours=3))
    assert board.head_nodes.order(later) is None
    assert board.sent() == [an_order(), an_order()]


def test_a_token_is_never_two_orders(board: Board) -> None:
    board.head_nodes.prepare(CLUSTER)
    board.head_nodes.order(an_order())
    with pytest.raises(Permanent):
        board.head_nodes.order(an_order(verb=Verb.HOLD))
    assert board.sent() == [an_order()]


def test_what_was_never_ordered_is_no_order(board: Board) -> None:
    board.heartbeat()
    assert board.head_nodes.ordered(CLUSTER, "nobody-s") == (None, None)


def test_a_name_that_is_not_slurm_s_is_refused(board: Board) -> None:
    with pytest.raises(Permanent):
        board.head_nodes.attempt("lm-7b-a3")


# ---- what a bucket and a queue bring along ---------------------------------------------------------------------------

BAD = [b"", b"{", b"[]", b"\xff\xfe", b'{"v": 2}', b'{"v": 1}', b"x" * 300_000]


@pytest.mark.parametrize("body", BAD)
def test_an_unusable_document_is_a_reason_and_no_crash(real: Board, body: bytes) -> None:
    real.put(agent_key(CLUSTER), body)
    assert isinstance(real.head_nodes.agent(CLUSTER), Unknown)
    real.heartbeat()
    real.put(attempt_key(ATTEMPT), body)
    with pytest.raises(DependencyUnavailable, match="cannot be used"):
        real.head_nodes.attempt(ATTEMPT)
    real.put(nodes_key(CLUSTER), body)
    assert isinstance(real.head_nodes.nodes(CLUSTER), Unknown)
    real.head_nodes.prepare(CLUSTER)
    real.put(answer_key(CLUSTER, an_order().token), body)
    with pytest.raises(DependencyUnavailable, match="cannot be used"):
        real.head_nodes.order(an_order())


def test_a_document_in_another_s_place_is_not_believed(real: Board) -> None:
    real.heartbeat()
    real.show()
    foreign = json.loads(
        AttemptDoc(
            attempt="slurm.ml.999", cluster=CLUSTER, slurm_job=999, restart=0, state=SlurmState.FAILED, seen_at=START
        ).to_json()
    )
    real.put(attempt_key(ATTEMPT), json.dumps(foreign).encode())
    with pytest.raises(DependencyUnavailable, match=r"slurm\.ml\.999"):
        real.head_nodes.attempt(ATTEMPT)


def test_a_successor_on_another_cluster_is_not_believed(real: Board) -> None:
    """It would be adopted, fenced for, and stopped in its turn: by a head node that has nothing to do with it."""
    real.heartbeat()
    doc = AttemptDoc(
        attempt=ATTEMPT,
        cluster=CLUSTER,
        slurm_job=123,
        restart=0,
        state=SlurmState.REQUEUED,
        seen_at=START,
        successor="slurm.other.5",
    )
    real.put(attempt_key(ATTEMPT), doc.to_json())
    with pytest.raises(DependencyUnavailable, match="successor"):
        real.head_nodes.attempt(ATTEMPT)


def test_an_order_that_was_damaged_is_not_sent(real: Board) -> None:
    real.head_nodes.prepare(CLUSTER)
    real.put(order_key(CLUSTER, an_order().token), b"{")
    with pytest.raises(Permanent, match="cannot be given"):
        real.head_nodes.order(an_order())
    assert real.sent() == []


def test_a_name_with_a_way_out_is_refused(real: Board) -> None:
    with pytest.raises(Permanent):
        real.head_nodes.prepare("../other")
    assert isinstance(real.head_nodes.agent("../other"), Unknown)


def test_what_each_call_costs(real: Board) -> None:
    real.heartbeat()
    real.show()
    real.head_nodes.attempt(ATTEMPT)
    assert real.calls == {"GetObject": 2}
    real.calls.clear()
    real.head_nodes.nodes(CLUSTER)
    assert real.calls == {"GetObject": 2}
    real.head_nodes.prepare(CLUSTER)
    real.calls.clear()
    real.head_nodes.order(an_order())
    assert real.calls == {"GetObject": 1, "PutObject": 1, "SendMessage": 1}
    real.calls.clear()
    real.head_nodes.order(an_order())
    assert real.calls == {"GetObject": 2, "PutObject": 1, "SendMessage": 1}
    real.answer(an_answer())
    real.calls.clear()
    real.head_nodes.order(an_order())
    assert real.calls == {"GetObject": 1}


def test_the_queue_is_made_once_with_what_the_agent_needs(real: Board) -> None:
    real.head_nodes.prepare(CLUSTER)
    sqs = make_client("sqs")
    url = sqs.get_queue_url(QueueName="rekindle-agent-ml")["QueueUrl"]
    made = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
    kept = {name: value for name, value in made.items() if name in QUEUE_ATTRIBUTES}
    assert {name: str(value).lower() for name, value in kept.items()} == QUEUE_ATTRIBUTES
    assert int(made["MessageRetentionPeriod"]) <= 3600
    sqs.set_queue_attributes(QueueUrl=url, Attributes={"VisibilityTimeout": "90"})  # an operator's own
    real.head_nodes.prepare(CLUSTER)
    assert real.head_nodes.order(an_order()) is None


def test_a_queue_that_was_deleted_is_asked_for_again(real: Board) -> None:
    real.head_nodes.prepare(CLUSTER)
    sqs = make_client("sqs")
    sqs.delete_queue(QueueUrl=sqs.get_queue_url(QueueName="rekindle-agent-ml")["QueueUrl"])
    for _ in range(2):
        with pytest.raises(DependencyUnavailable):
            real.head_nodes.order(an_order())
    real.head_nodes.prepare(CLUSTER)
    assert real.head_nodes.order(an_order()) is None
    assert real.sent() == [an_order()]

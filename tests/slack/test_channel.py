"""The channel against a Slack that misbehaves: nothing lost, nothing doubled, never an older state over a newer one."""

from __future__ import annotations

import html
import random
import threading
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from chalicelib.aws.dynamodb.chat_threads import DynamoChatThreads
from chalicelib.aws.dynamodb.incidents import DynamoIncidentStore
from chalicelib.channels.channel import RetryLater, SlowDown
from chalicelib.channels.slack.blocks import reply_message
from chalicelib.channels.slack.visit import LEASE
from chalicelib.channels.slack.web_api import OutcomeUnknown, Refused, SlackApi
from chalicelib.domain.model.action import Severity
from chalicelib.domain.model.approvals import ApprovalAnswer
from chalicelib.domain.model.errors import DependencyUnavailable, Permanent, RecoveryError
from chalicelib.domain.model.incident import Phase
from chalicelib.domain.notices.threads import STORM_AFTER, STORM_WINDOW, StormState
from chalicelib.ports.notices import Notice, NoticeKind
from tests.canary import CANARY, SLACK_TOKEN
from tests.slack.conftest import Stage
from tests.slack.fake_slack import CONVERSATION, FakeSlack, Mood
from tests.slack.made import approval, incident, notice

CLOSED = Mood(closes=True, takes=True)
CHANGE = NoticeKind.CHANGE


def change(stage: Stage, number: int, count: int) -> Notice:
    return stage.at(notice(number, token=f"change-{number}-{count}", kind=CHANGE, title="moved", text="moved"))


def test_one_message_per_incident_and_what_is_news_goes_into_its_thread(stage: Stage) -> None:
    one = stage.store(incident(version=1))
    stage.send(stage.at(notice()))
    stage.store(replace(one, phase=Phase.CHECKPOINTING, version=2))
    stage.send(stage.at(notice(token="n-second", title="Saved at step 900", text="A checkpoint was written.")))
    (root,) = stage.slack.roots()
    assert "checkpointing" in root.text
    assert [reply.text for reply in stage.slack.replies(root)] == ["Saved at step 900"]
    assert len(root.states) == 2


def test_a_change_updates_the_message_and_disturbs_nobody(stage: Stage) -> None:
    one = stage.store(incident(version=1))
    stage.send(stage.at(notice()))
    stage.store(replace(one, phase=Phase.RECOVERED, version=5, closed_at=stage.clock.now()))
    stage.send(change(stage, 1, 1))
    (root,) = stage.slack.roots()
    assert "recovered" in root.text
    assert stage.slack.replies(root) == []


def test_a_change_of_an_incident_that_nobody_was_told_of_is_not_told(stage: Stage) -> None:
    stage.store(incident(version=1))
    stage.send(change(stage, 1, 1))
    assert stage.slack.calls == []


def test_a_change_that_shows_already_costs_no_call(stage: Stage) -> None:
    stage.store(incident(version=3))
    stage.send(stage.at(notice()))
    before = len(stage.slack.calls)
    stage.send(change(stage, 1, 1))
    assert len(stage.slack.calls) == before


def test_an_approval_is_announced_to_the_channel_and_has_its_buttons(stage: Stage) -> None:
    one = stage.store(incident(version=1))
    stage.send(stage.at(notice()))
    stage.store(replace(one, version=2, approvals=(approval(),)))
    asked = notice(token="ask", kind=NoticeKind.APPROVAL, approval_id="ap-1", severity=Severity.PAGE, title="May I?")
    stage.send(stage.at(asked))
    (root,) = stage.slack.roots()
    assert "rekindle_approve" in root.words
    assert [reply.broadcast for reply in stage.slack.replies(root)] == [True]


def test_a_question_that_comes_after_its_answer_calls_nobody(stage: Stage) -> None:
    """Slack was away for an hour: a page for the whole channel about what is settled would only mislead."""
    answered = approval(answer=ApprovalAnswer.APPROVED, by="policy", answered_at=stage.clock.now())
    stage.store(incident(version=2, approvals=(answered,)))
    asked = stage.at(notice(token="ask", kind=NoticeKind.APPROVAL, approval_id="ap-1", severity=Severity.PAGE))
    stage.send(stage.at(notice()))
    stage.clock.step(timedelta(hours=1))
    stage.send(asked)
    (root,) = stage.slack.roots()
    (reply,) = stage.slack.replies(root)
    assert not reply.broadcast
    assert "late: sent" in reply.words


def test_what_is_said_in_time_claims_no_lateness(stage: Stage) -> None:
    stage.store(incident(version=1))
    stage.send(stage.at(notice()))
    stage.send(stage.at(notice(token="n-2", title="more", severity=Severity.PAGE)))
    (root,) = stage.slack.roots()
    (reply,) = stage.slack.replies(root)
    assert reply.broadcast
    assert "late" not in reply.words


def test_news_without_an_incident_is_told_once(stage: Stage) -> None:
    lone = stage.at(notice(incident_id="", title="Protected: lm-9"))
    stage.send(lone)
    stage.send(lone)
    assert [root.text for root in stage.slack.roots()] == ["Protected: lm-9"]


def test_news_of_an_incident_that_is_not_in_the_table_is_told_all_the_same(stage: Stage) -> None:
    stage.send(stage.at(notice(incident_id="inc-gone")))
    assert len(stage.slack.roots()) == 1


@pytest.mark.parametrize("mood", [CLOSED, Mood(status=500, takes=True), Mood(body="<html>", takes=True)])
@pytest.mark.parametrize("lone", [False, True])
def test_a_post_whose_answer_was_lost_is_found_and_not_posted_again(stage: Stage, mood: Mood, lone: bool) -> None:
    stage.store(incident(version=1))
    stage.slack.next("chat.postMessage", mood)
    stage.send(stage.at(notice(incident_id="") if lone else notice()))
    assert stage.slack.count("chat.postMessage") == 1
    assert stage.slack.count("conversations.history") == 1
    assert len(stage.slack.roots()) == 1
    stage.send(stage.at(notice(incident_id="") if lone else notice()))
    assert len(stage.slack.roots()) == 1


@pytest.mark.parametrize("mood", [CLOSED, Mood(status=503, takes=True), Mood(error="fatal_error", takes=True)])
def test_a_reply_whose_answer_was_lost_is_found_and_not_posted_again(stage: Stage, mood: Mood) -> None:
    stage.store(incident(version=1))
    stage.send(stage.at(notice()))
    stage.slack.next("chat.postMessage", mood)
    stage.send(stage.at(notice(token="n-2", title="more")))
    (root,) = stage.slack.roots()
    assert [reply.text for reply in stage.slack.replies(root)] == ["more"]
    assert stage.slack.count("conversations.replies") == 1


@pytest.mark.parametrize("takes", [True, False])
@pytest.mark.parametrize("lone", [True, False])
def test_a_post_that_nobody_answers_is_there_once(stage: Stage, takes: bool, lone: bool) -> None:
    stage.store(incident(version=1))
    one = stage.at(notice(incident_id="") if lone else notice())
    stage.slack.next("chat.postMessage", Mood(hangs=True, takes=takes))
    with pytest.raises(OutcomeUnknown):
        stage.impatient().send(one, attempt=1)
    stage.send(one)
    assert len(stage.slack.roots()) == 1
    assert stage.slack.count("chat.postMessage") == (1 if takes else 2)


@pytest.mark.parametrize("mood", [Mood(closes=True), Mood(status=500), Mood(error="internal_error")])
def test_a_post_that_never_arrived_is_posted_again(stage: Stage, mood: Mood) -> None:
    stage.store(incident(version=1))
    stage.slack.next("chat.postMessage", mood, mood)
    stage.send(stage.at(notice()))
    assert len(stage.slack.roots()) == 1
    assert stage.slack.count("chat.postMessage") == 3


def test_while_nobody_knows_whether_a_post_arrived_nothing_else_is_sent(stage: Stage) -> None:
    stage.store(incident(version=1))
    stage.slack.next("chat.postMessage", CLOSED)
    with pytest.raises(OutcomeUnknown):
        stage.channel.send(stage.at(notice()), attempt=1)
    with pytest.raises(RetryLater):
        stage.channel.send(stage.at(notice(token="n-2")), attempt=1)
    assert stage.slack.count("chat.postMessage") == 1
    stage.clock.step(LEASE)
    stage.channel.send(stage.at(notice(token="n-2")), attempt=2)
    stage.channel.send(stage.at(notice()), attempt=2)
    (root,) = stage.slack.roots()
    assert [reply.text for reply in stage.slack.replies(root)] == ["A GPU has fallen off the bus"]  # n-2's


def test_an_app_that_may_not_read_the_conversation_tells_twice_rather_than_never(stage: Stage) -> None:
    stage.store(incident(version=1))
    stage.slack.next("chat.postMessage", Mood(closes=True))
    stage.slack.next("conversations.history", Mood(error="missing_scope"))
    stage.send(stage.at(notice()))
    assert len(stage.slack.roots()) == 1


def test_a_rate_limit_says_how_long_and_posts_nothing_twice(stage: Stage) -> None:
    stage.store(incident(version=1))
    stage.slack.next("chat.postMessage", Mood(status=429, retry_after="37"))
    with pytest.raises(SlowDown) as slow:
        stage.channel.send(stage.at(notice()), attempt=1)
    assert slow.value.retry_after_s == 37
    stage.channel.send(stage.at(notice()), attempt=2)  # at once: a refused post leaves no lease behind
    assert len(stage.slack.roots()) == 1


@pytest.mark.parametrize("word", ["channel_not_found", "not_in_channel", "is_archived", "restricted_action"])
def test_what_slack_refuses_is_a_dead_letter_that_names_why(stage: Stage, word: str) -> None:
    stage.store(incident(version=1))
    stage.slack.next("chat.postMessage", Mood(error=word))
    with pytest.raises(Permanent, match=word):
        stage.channel.send(stage.at(notice()), attempt=1)
    stage.channel.send(stage.at(notice()), attempt=2)  # after a person has mended it
    assert len(stage.slack.roots()) == 1


@pytest.mark.parametrize("word", ["invalid_auth", "token_revoked", "account_inactive"])
def test_a_token_that_is_not_taken_is_tried_again_later(stage: Stage, word: str) -> None:
    stage.store(incident(version=1))
    stage.slack.next("chat.postMessage", Mood(error=word))
    with pytest.raises(DependencyUnavailable, match=word) as refused:
        stage.channel.send(stage.at(notice()), attempt=1)
    assert CANARY not in str(refused.value)


@pytest.mark.parametrize("word", ["msg_too_long", "msg_blocks_too_long", "invalid_blocks"])
def test_a_message_that_slack_does_not_take_is_sent_as_plain_text(stage: Stage, word: str) -> None:
    stage.store(incident(version=1))
    stage.slack.next("chat.postMessage", Mood(error=word))
    stage.send(stage.at(notice()))
    (root,) = stage.slack.roots()
    assert root.states[0]["blocks"] == []
    assert "lm-1: node hardware" in root.text


def test_a_lost_update_is_made_again_with_the_newest_state(stage: Stage) -> None:
    one = stage.store(incident(version=1))
    stage.send(stage.at(notice()))
    stage.slack.next("chat.update", Mood(hangs=True), Mood(status=500), Mood(status=429, retry_after="1"))
    stage.store(replace(one, phase=Phase.STOPPING, version=2))
    with pytest.raises(OutcomeUnknown):
        stage.impatient().send(change(stage, 1, 2), attempt=1)
    stage.store(replace(one, phase=Phase.VERIFYING, version=3))
    stage.send(change(stage, 1, 2))
    stage.send(change(stage, 1, 3))
    (root,) = stage.slack.roots()
    assert "verifying" in root.text


def test_a_message_that_somebody_deleted_comes_back_with_the_next_news_only(stage: Stage) -> None:
    one = stage.store(incident(version=1))
    stage.send(stage.at(notice()))
    stage.slack.roots()[0].deleted = True
    stage.store(replace(one, version=2))
    stage.send(change(stage, 1, 2))
    assert stage.slack.roots() == []
    stage.send(stage.at(notice(token="n-2", title="again")))
    assert len(stage.slack.roots()) == 1


def test_a_lease_that_ran_out_sends_nothing_more(stage: Stage) -> None:
    stage.store(incident(version=1))
    slow = replace(stage.channel, api=_Slow(stage))
    with pytest.raises(RetryLater):
        slow.send(stage.at(notice(incident_id="")), attempt=1)
    assert stage.slack.calls == []


class _Slow(SlackApi):
    """As if the function had been frozen for longer than its lease just before it sends."""

    def __init__(self, stage: Stage) -> None:
        super().__init__(lambda: SLACK_TOKEN, url=stage.slack.url)
        self.timeout = LEASE + timedelta(seconds=1)


@pytest.mark.parametrize("seed", range(3))
def test_in_any_order_and_with_any_failures_the_last_state_shows_and_each_news_is_there_once(
    stage: Stage, seed: int
) -> None:
    dice = random.Random(seed)
    moods = [CLOSED, Mood(closes=True), Mood(status=500), Mood(status=429, retry_after="2"), Mood(error="fatal_error")]
    phases = [Phase.OPEN, Phase.CHECKPOINTING, Phase.STOPPING, Phase.RESUBMITTING, Phase.VERIFYING, Phase.RECOVERED]
    stage.store(incident(version=0))
    waiting = [stage.at(notice())]
    for version, phase in enumerate(phases, start=1):
        for method in ("chat.postMessage", "chat.update"):
            stage.slack.next(method, *([dice.choice(moods)] if dice.random() < 0.4 else []))
        stage.store(incident(version=version, phase=phase))
        waiting.append(stage.at(notice(token=f"news-{version}", title=f"news {version}")))
        waiting.append(stage.at(notice(token=f"c-{version}", kind=CHANGE)))
        dice.shuffle(waiting)
        for _ in range(dice.randrange(len(waiting))):
            message = waiting.pop()
            stage.send(message)
            if dice.random() < 0.3:
                waiting.append(message)  # a double
    for message in waiting:
        stage.send(message)
    (root,) = stage.slack.roots()
    assert "recovered" in root.text
    shown = [int(html.unescape(str(state)).rsplit("change ", 1)[1].split("'")[0]) for state in root.states]
    assert shown == sorted(shown)
    told = [reply.text for reply in stage.slack.replies(root)]
    assert len(told) == len(set(told))
    every = {f"news {version}" for version in range(1, 7)} | {"A GPU has fallen off the bus"}
    assert len(set(told) & every) == len(every) - 1  # the one that the message itself said first


class _Atomic:
    """A client whose calls take turns: DynamoDB's conditional writes are atomic, moto's in threads are not."""

    def __init__(self, client: Any) -> None:
        self._client, self._turn = client, threading.Lock()

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)

        def call(**request: Any) -> Any:
            with self._turn:
                return method(**request)

        return call


def test_deliveries_at_once_post_one_message(stage: Stage) -> None:
    stage.store(incident(version=1))
    client = _Atomic(stage.client)
    channel = replace(
        stage.channel,
        threads=DynamoChatThreads(client, table=stage.table),
        incidents=DynamoIncidentStore(client, table=stage.table),
    )
    errors: list[RecoveryError] = []
    gate = threading.Barrier(6)

    def deliver(number: int) -> None:
        gate.wait(60)
        try:
            channel.send(stage.at(notice(token=f"n-{number}")), attempt=1)
        except RecoveryError as err:
            errors.append(err)

    workers = [threading.Thread(target=deliver, args=(number,)) for number in range(6)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(120)
    assert len(stage.slack.roots()) == 1
    assert [err for err in errors if not isinstance(err, RetryLater)] == []


# --- storms ---


def brew(stage: Stage) -> None:
    """As if the channel had just been told of as many Incidents as get messages of their own."""
    stage.threads.set_weather("ops", StormState(starts=(stage.clock.now(),) * STORM_AFTER))


@pytest.mark.long
def test_a_storm_of_200_incidents_becomes_one_digest(stage: Stage) -> None:
    stage.store_many([incident(number, version=1) for number in range(1, 201)])
    waiting = [stage.at(notice(number)) for number in range(1, 201)]
    rounds = 0
    while waiting:
        rounds += 1
        assert rounds < 20
        left = []
        for message in waiting:
            try:
                stage.channel.send(message, attempt=rounds)
            except RetryLater:
                left.append(message)
        stage.clock.step(timedelta(seconds=15))
        waiting = left
    assert len(stage.slack.roots()) == STORM_AFTER + 1
    digest = stage.slack.roots()[-1]
    assert f"{200 - STORM_AFTER} Incidents at once" in digest.text
    assert "/rekindle incidents" in digest.words
    assert stage.slack.replies(digest) == []
    assert len(stage.slack.calls) < STORM_AFTER + 10

    over = {"version": 9, "phase": Phase.RECOVERED, "closed_at": stage.clock.now()}
    stage.store_many([incident(number, **over) for number in range(1, 201)])
    last = change(stage, 150, 9)
    stage.send(last)
    assert f"0 open, {200 - STORM_AFTER} closed" in digest.text


def test_after_the_storm_an_incident_has_its_own_message_again(stage: Stage) -> None:
    brew(stage)
    for number in (1, 2):
        stage.store(incident(number, version=1))
        stage.send(stage.at(notice(number)))
    assert len(stage.slack.roots()) == 1
    stage.clock.step(STORM_WINDOW)
    stage.store(incident(77, version=1))
    stage.send(stage.at(notice(77)))
    assert stage.slack.roots()[-1].text.endswith(
        "lm-77: node hardware, open. It has been reported, and is being examined."
    )


def test_what_waits_for_an_answer_has_its_buttons_in_the_digest(stage: Stage) -> None:
    brew(stage)
    for number in range(1, 6):
        stage.store(incident(number, version=1, approvals=(approval(number),)))
        stage.send(stage.at(notice(number, kind=NoticeKind.APPROVAL)))
    digest = stage.slack.roots()[-1]
    assert digest.words.count("rekindle_approve") == 3


def test_an_incident_that_joins_after_the_digest_was_read_still_gets_into_it(stage: Stage) -> None:
    reported_at = stage.clock.now()
    brew(stage)
    stage.store(incident(1, version=1))
    stage.send(stage.at(notice(1)))
    stage.clock.step(timedelta(seconds=60))  # the digest shows what was so after `reported_at`, this one not among it
    stage.store(incident(99, version=1))
    stage.send(notice(99, at=reported_at))
    assert "2 Incidents at once" in stage.slack.roots()[-1].text


@pytest.mark.parametrize("mood", [CLOSED, Mood(status=500, takes=True), Mood(closes=True)])
def test_a_digest_whose_answer_was_lost_is_there_once(stage: Stage, mood: Mood) -> None:
    brew(stage)
    stage.slack.next("chat.postMessage", mood)
    stage.store(incident(50, version=1))
    stage.send(stage.at(notice(50)))
    assert len(stage.slack.roots()) == 1
    assert "1 Incidents at once" in stage.slack.roots()[0].text


# --- the API's own edges ---


def test_nothing_listens(stage: Stage, slack: FakeSlack) -> None:
    with FakeSlack() as gone:
        url = gone.url
    api = SlackApi(lambda: SLACK_TOKEN, url=url, timeout_s=2)
    with pytest.raises(DependencyUnavailable) as refused:
        api.find(CONVERSATION, mark="x", since=stage.clock.now())
    assert not isinstance(refused.value, OutcomeUnknown)
    assert slack.calls == []


def test_the_history_is_read_page_by_page(stage: Stage) -> None:
    since = stage.clock.now() - timedelta(minutes=5)
    message = stage.channel.api
    for number in range(120):
        message.post(CONVERSATION, reply_message(f"{number}", ""), mark=f"m{number}")
    assert message.find(CONVERSATION, mark="m0", since=since) == stage.slack.messages[0].ts
    assert message.find(CONVERSATION, mark="none", since=since) is None


def test_a_refusal_does_not_hold_the_token(stage: Stage) -> None:
    stage.slack.next("chat.postMessage", Mood(error="no_permission"))
    with pytest.raises(Refused) as refused:
        stage.channel.api.post(CONVERSATION, reply_message("a", "b"), mark="x")
    assert CANARY not in repr(refused.value) + str(refused.value)

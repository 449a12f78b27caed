"""The last message of an Incident: how long, how many steps, GPU-hours and dollars, and where the story is."""

from __future__ import annotations

import html
import json
from dataclasses import replace

import pytest

from chalicelib.channels.slack.blocks import incident_message
from chalicelib.channels.slack.figures import in_words
from chalicelib.channels.slack.settings import slack_settings
from chalicelib.domain.model.errors import DependencyUnavailable, InvalidSettings
from chalicelib.domain.model.incident import Incident, Phase
from chalicelib.domain.model.instances import JobSize
from chalicelib.domain.model.known import Unknown
from chalicelib.domain.notices.channels import ChannelKind, SlackConfig
from chalicelib.domain.reporting.ledger import IncidentLedger
from chalicelib.ports.notices import Address
from rekindle.protocol.quantities import amount
from tests.ledger import books
from tests.slack.conftest import Stage
from tests.slack.made import complaints, incident, notice, texts


def _shown(one: Incident, ledger: IncidentLedger | None, console_url: str = "") -> str:
    message = incident_message(one, latest=None, can_press=False, ledger=ledger, console_url=console_url)
    assert complaints(message.blocks) == []
    return html.unescape("\n".join([message.text, *texts(message.blocks)]))


def test_a_recovered_incident_says_what_it_took_and_cost_under_the_ledgers_names() -> None:
    one = books.incident()
    ledger = books.ledger(one)
    wire = ledger.to_wire()
    text = _shown(one, ledger)
    assert f"*Time to recover (MTTR)*\n{amount('mttr_s', wire['mttr_s'])}" in text
    assert f"*Steps lost*\n{wire['steps_lost']:,}" in text
    assert f"*GPU-hours lost*\n{wire['gpu_hours_lost']:,.2f}" in text
    assert f"*US dollars lost*\n{wire['dollars_lost']:,.2f}" in text
    assert f"rekindle ledger postmortem {one.incident_id}" in text
    assert text.splitlines()[0].endswith(f"{in_words(ledger)[1:]}.")


def test_what_is_not_known_says_why_and_is_no_zero() -> None:
    one = books.incident()
    text = _shown(one, books.ledger(one, size=JobSize(gpus=Unknown("its size is not known"))))
    assert "*US dollars lost*\nnot known" in text
    assert "*GPU-hours lost*\nnot known" in text
    assert "its size is not known" in text
    assert "dollars" not in text.splitlines()[0]


def test_an_incident_that_was_not_recovered_says_how_long_it_lasted() -> None:
    one = replace(books.incident(), phase=Phase.HANDED_OVER)
    text = _shown(one, books.ledger(one))
    assert "*From its onset to its end*" in text
    assert "MTTR" not in text


def test_the_users_own_console_is_linked_and_nothing_else_is() -> None:
    one = books.incident()
    assert f"<https://ops.example/rk/incidents/{one.incident_id}|" in _shown(one, None, "https://ops.example/rk/")
    for address in (
        "",
        "http://ops.example",
        "https://ops.example/a|b",
        "https://ops.example/?x=<!here>",
        "javascript:x",
    ):
        assert "This Incident in the console" not in _shown(one, None, address)


def test_without_a_console_a_signed_link_says_when_it_ends_and_beside_it_stands_what_makes_a_new_one() -> None:
    one = books.incident()
    url = f"https://b-1.s3.eu-west-1.amazonaws.com/incident-pages/i.html?X-Amz-Security-Token={'t' * 1500}&X-Amz-A=1%2F"
    command = f"rekindle show {one.incident_id} --report"
    address = Address(url=url, until=books.at(3600), command=command)
    message = incident_message(one, latest=None, can_press=False, ledger=books.ledger(one), address=address)
    assert complaints(message.blocks) == []
    text = html.unescape("\n".join(texts(message.blocks)))
    assert f"<{url}|This Incident's page> (opens for anyone who has it, until " in text
    assert f"`{command}`" in text
    assert sum(url in html.unescape(json.dumps(block)) for block in message.blocks) == 1
    console = incident_message(one, latest=None, can_press=False, address=address, console_url="https://ops.example")
    assert "X-Amz" not in json.dumps(console.blocks)
    for bad in ("", "https://x/a|b", "https://x/<!here>", "javascript:x", "https://x/a b"):
        unlinked = incident_message(one, latest=None, can_press=False, address=replace(address, url=bad))
        assert "This Incident's page" not in json.dumps(unlinked.blocks)
        assert command in json.dumps(unlinked.blocks)


@pytest.mark.parametrize("address", ["http://ops.example", "https://ops.example/?a=b", "ops.example", "https://a b/"])
def test_an_address_that_cannot_be_linked_is_refused_by_name(address: str) -> None:
    config = SlackConfig(name="ops", kind=ChannelKind.SLACK, channel="C0123ABCD", token_secret="t", console_url=address)
    with pytest.raises(InvalidSettings, match=r"channels\.ops\.console_url"):
        slack_settings(config)


def test_the_message_in_the_channel_ends_with_the_figures_and_arrives_without_them_too(stage: Stage) -> None:
    asked: list[str] = []

    def ledger(one: Incident) -> IncidentLedger:
        asked.append(one.incident_id)
        return books.ledger(books.incident())

    def away(_: Incident) -> IncidentLedger:
        raise DependencyUnavailable("DynamoDB is throttled")

    stage.channel = replace(stage.channel, ledger=ledger)
    one = stage.store(incident(version=1))
    stage.send(stage.at(notice()))
    assert asked == []  # it is open: nothing is counted yet
    stage.store(replace(one, phase=Phase.RECOVERED, version=2, closed_at=stage.clock.now()))
    stage.send(stage.at(notice(token="n-end", title="Recovered", text="It is past its step.")))
    (root,) = stage.slack.roots()
    assert asked
    assert "recovered in" in root.text.lower()
    stage.channel = replace(stage.channel, ledger=away)
    two = stage.store(replace(incident(2, version=1), phase=Phase.RECOVERED, closed_at=stage.clock.now()))
    stage.send(stage.at(notice(2, token="n-two", title="Recovered", text="It is past its step.")))
    assert len(stage.slack.roots()) == 2, two

"""Links to a run's own pages: which are taken, what is said of the others, and where people see them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chalicelib.channels.slack.blocks import reply_message
from chalicelib.domain.reporting.incident_page import page_of
from chalicelib.domain.reporting.paste import paste_of
from chalicelib.domain.reporting.sentence import commands_of
from rekindle.monitor.base.settings import Config
from rekindle.protocol.mailbox import Heartbeat
from rekindle.protocol.run_links import MAX_LINKS, is_address, links_of, read_links
from tests.domain.looks import incident, look, seen, view
from tests.ledger import books
from tests.sizes import examples
from tests.slack.made import complaints, texts

WANDB = "https://wandb.ai/acme/llm/runs/1ab2?tab=loss&x=1"
GIVEN = f"W&B={WANDB} MLflow=https://mlflow.acme.example:8443/#/experiments/3/runs/9f"


def test_the_setting_is_names_and_addresses() -> None:
    assert [name for name, _ in read_links(GIVEN)] == ["W&B", "MLflow"]
    assert Config.from_env({"REKINDLE_LINKS": GIVEN}).links == read_links(GIVEN)
    assert Config.from_env({}).links == ()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("https://wandb.ai/a", "NAME=URL"),
        ("W&B=http://wandb.ai/a", "no https address"),
        ("W&B=https://me:secret@wandb.ai/a", "no https address"),
        ("W&B=https://wandb.ai/a|b", "no https address"),
        ("W&B=https://wandb.ai/<script>", "no https address"),
        ("W&B=javascript:alert(1)", "no https address"),
        ("W&B=https://", "no https address"),
        ("W&B=https://a/ W&B=https://b/", "twice"),
        ("=https://a/", "NAME=URL"),
        ("<b>=https://a/", "NAME=URL"),
        ("a=https://a/ b=https://a/ c=https://a/ d=https://a/ e=https://a/", "at most 4"),
    ],
)
def test_a_wrong_one_is_named_with_the_setting_and_none_is_taken(text: str, said: str) -> None:
    config = Config.from_env({"REKINDLE_LINKS": text, "REKINDLE_POLL_S": "2"})
    (problem,) = config.problems
    assert problem.startswith("REKINDLE_LINKS: ")
    assert said in problem
    assert config.links == ()
    assert config.poll_s == 2


@settings(max_examples=examples(200))
@given(st.dictionaries(st.text(max_size=30), st.one_of(st.none(), st.integers(), st.text(max_size=60)), max_size=8))
def test_whatever_a_heartbeat_holds_at_most_four_https_addresses_come_of_it(wire: dict[str, Any]) -> None:
    found = links_of(wire | {"W&B": WANDB})
    assert len(found) <= MAX_LINKS
    for name, url in found:
        assert url.startswith("https://")
        assert not set(name + url) & set("<>|\"'`*\\ \n")


def test_a_heartbeat_with_a_wrong_link_is_a_heartbeat_all_the_same() -> None:
    wire = {
        "v": 1,
        "job_id": "lm",
        "attempt": "lm",
        "attempt_number": 1,
        "step": 4,
        "first_step": 1,
        "loss": 1.5,
        "loss_state": "finite",
        "phase": "training",
        "step_s_median": 1.0,
        "rank": 0,
        "world_size": 1,
        "at": "2026-11-20T10:00:00+00:00",
        "links": {"W&B": WANDB, "evil": "javascript:alert(1)", "<b>": "https://a/", "n": 5},
    }
    beat = Heartbeat.from_wire(wire)
    assert (beat.step, beat.links) == (4, (("W&B", WANDB),))
    assert Heartbeat.from_json(beat.to_json()) == beat


def test_people_see_them_in_slack_on_the_page_and_among_the_commands() -> None:
    one = books.incident()
    one = replace(one, account=replace(one.account, links=read_links(GIVEN)))
    assert ("Run in W&B (wandb.ai)", WANDB) in paste_of(one, region="us-west-2")
    assert ("Run in MLflow (mlflow.acme.example)", read_links(GIVEN)[1][1]) in commands_of(one, region="")
    message = reply_message("title", "text", paste=paste_of(one, region="us-west-2"))
    assert complaints(message.blocks) == []
    said = "\n".join(texts(message.blocks))
    assert f"<{WANDB.replace('&', '&amp;')}|Run in W&amp;B (wandb.ai)>" in said
    page = page_of(one, (), books.ledger(one), now=books.at(5000), region="us-west-2")
    assert f'<a href="{WANDB.replace("&", "&amp;")}" rel="noreferrer noopener">' in page


def test_an_incident_keeps_what_the_newest_heartbeat_names() -> None:
    links = read_links(GIVEN)
    first = look(incident(), seen(view(links=links))).incident
    assert first.account.links == links
    assert look(first, seen(view(links=links[:1]))).incident.account.links == links[:1]
    assert look(first, seen(view())).incident.account.links == links  # a heartbeat without links tells nothing


@pytest.mark.parametrize(
    ("label", "url", "wanted"),
    [
        ("Run in W&B (wandb.ai)", WANDB, True),
        ("Run in W&B (wandb.ai)", "https://evil.example/", False),
        ("Run in W&B (evil.example)", WANDB, False),
        ("Logs", WANDB, False),
        ("Logs in the console", WANDB, False),
        ("Run in <b> (wandb.ai)", WANDB, False),
        ("Logs in the console", "https://eu-west-1.console.aws.amazon.com/cloudwatch/home?region=eu-west-1", True),
    ],
)
def test_only_a_link_whose_label_names_its_host_is_opened(label: str, url: str, wanted: bool) -> None:
    assert is_address(label, url) is wanted

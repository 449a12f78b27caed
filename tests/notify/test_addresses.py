"""Which lines of an Incident are shown as links to open."""

from __future__ import annotations

import pytest

from rekindle.protocol.addresses import is_address


@pytest.mark.parametrize(
    ("label", "url", "wanted"),
    [
        ("Logs", "https://wandb.ai/acme/llm/runs/1ab2?tab=loss&x=1", False),
        ("Logs in the console", "https://evil.example/", False),
        ("Logs in the <b>", "https://eu-west-1.console.aws.amazon.com/cloudwatch/home?region=eu-west-1", False),
        ("Logs in the console", "https://eu-west-1.console.aws.amazon.com/cloudwatch/home?region=eu-west-1", True),
        ("Story", "rekindle show inc-1", False),
    ],
)
def test_only_an_address_of_awss_own_console_is_opened(label: str, url: str, wanted: bool) -> None:
    assert is_address(label, url) is wanted

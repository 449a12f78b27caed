"""The app's manifest against Slack's own schema (the parts of it that we use), and against the code."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import fastjsonschema
import pytest

import app as app_module
from infra.slack.app import MANIFEST, manifest

ROOT = Path(__file__).parents[2]
API = "https://abc123.execute-api.eu-west-1.amazonaws.com/api"

# The bounds of github.com/slackapi/manifest-schema, schemas/manifest.schema.2.0.0.json, for what we have. Members
# that it does not know are refused there, too (additionalProperties).
URL = {"type": "string", "pattern": "^https://", "maxLength": 3000}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["display_information", "features", "oauth_config", "settings"],
    "additionalProperties": False,
    "properties": {
        "_metadata": {
            "type": "object",
            "additionalProperties": False,
            "properties": {"major_version": {"const": 2}, "minor_version": {"type": "integer"}},
        },
        "display_information": {
            "type": "object",
            "required": ["name"],
            "additionalProperties": False,
            "properties": {
                "name": {"type": "string", "minLength": 1, "maxLength": 35},
                "description": {"type": "string", "minLength": 1, "maxLength": 140},
                "background_color": {"type": "string", "pattern": "^#[0-9a-fA-F]{3}([0-9a-fA-F]{3})?$"},
                "long_description": {"type": "string", "minLength": 175, "maxLength": 4000},
            },
        },
        "features": {
            "type": "object",
            "additionalProperties": False,
            "properties": {
                "bot_user": {
                    "type": "object",
                    "required": ["display_name"],
                    "additionalProperties": False,
                    "properties": {
                        "display_name": {"type": "string", "minLength": 1, "maxLength": 80},
                        "always_online": {"type": "boolean"},
                    },
                },
                "slash_commands": {
                    "type": "array",
                    "minItems": 1,
                    "maxItems": 50,
                    "items": {
                        "type": "object",
                        "required": ["command", "description", "url"],
                        "additionalProperties": False,
                        "properties": {
                            "command": {"type": "string", "pattern": "^/", "minLength": 2, "maxLength": 32},
                            "url": URL,
                            "description": {"type": "string", "minLength": 1, "maxLength": 2000},
                            "usage_hint": {"type": "string", "minLength": 1, "maxLength": 1000},
                            "should_escape": {"type": "boolean"},
                        },
                    },
                },
            },
        },
        "oauth_config": {
            "type": "object",
            "additionalProperties": False,
            "properties": {
                "scopes": {
                    "type": "object",
                    "additionalProperties": False,
                    "properties": {
                        "bot": {"type": "array", "maxItems": 255, "items": {"type": "string", "maxLength": 50}}
                    },
                }
            },
        },
        "settings": {
            "type": "object",
            "additionalProperties": False,
            "properties": {
                "interactivity": {
                    "type": "object",
                    "required": ["is_enabled", "request_url"],
                    "additionalProperties": False,
                    "properties": {"is_enabled": {"const": True}, "request_url": URL},
                },
                "org_deploy_enabled": {"type": "boolean"},
                "socket_mode_enabled": {"const": False},
                "token_rotation_enabled": {"const": False},
            },
        },
    },
}

# Which method of Slack's API, or feature, needs which scope. Source: docs.slack.dev, the methods' own pages.
SCOPES = {
    "chat.postMessage": {"chat:write"},
    "chat.update": {"chat:write"},
    "conversations.history": {"channels:history", "groups:history", "metadata.message:read"},
    "conversations.replies": {"channels:history", "groups:history", "metadata.message:read"},
    "usergroups.users.list": {"usergroups:read"},
}


def test_the_manifest_is_one_that_slack_takes() -> None:
    fastjsonschema.compile(SCHEMA)(manifest(API))


def test_its_addresses_are_routes_of_the_api() -> None:
    made = manifest(API + "/")
    paths = {made["settings"]["interactivity"]["request_url"], made["features"]["slash_commands"][0]["url"]}
    assert {path.removeprefix(API) for path in paths} == {"/hooks/slack/actions", "/hooks/slack/commands"}
    assert {path.removeprefix(API) for path in paths} <= set(app_module.app.routes)


def test_it_asks_for_the_scopes_of_the_methods_that_the_code_calls_and_no_others() -> None:
    source = (ROOT / "chalicelib/channels/slack/web_api.py").read_text(encoding="utf-8")
    called = set(re.findall(r'"((?:chat|conversations|usergroups)\.[\w.]+)"', source))
    assert called == set(SCOPES)
    wanted = set().union(*SCOPES.values()) | {"commands"}
    assert set(manifest(API)["oauth_config"]["scopes"]["bot"]) == wanted


@pytest.mark.parametrize("url", ["http://x.example/api", "abc", "", "https://", "https://x/?a=1"])
def test_another_address_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="not the address"):
        manifest(url)


def test_it_is_printed_by_a_command() -> None:
    command = [sys.executable, "-m", "rekindle.cli.main", "stack", "slack-app", API]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0
    assert json.loads(done.stdout) == manifest(API)
    assert "API-ID" in MANIFEST.read_text(encoding="utf-8")
    assert "API-ID" not in done.stdout


def test_the_hooks_are_not_behind_iam_and_take_forms_only() -> None:
    for path in ("/hooks/slack/actions", "/hooks/slack/commands"):
        (entry,) = app_module.app.routes[path].values()
        assert entry.authorizer is None
        assert entry.content_types == [app_module.FORM]

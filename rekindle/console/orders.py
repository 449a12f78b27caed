"""The forms that change something. Each is one order to the API under the key that its form was drawn with, so that a
form that is sent twice is one order; afterwards the browser is led back to a page that tells what came of it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from rekindle.client.api import path
from rekindle.client.errors import CliError
from rekindle.client.shapes import objects, word
from rekindle.console.site import Note, PageRequest, PageResponse, Route, Site, route

MAX_COMMENT_CHARS: Final = 250
_KEY: Final = re.compile(r"[0-9a-f]{32}")
_WINDOW: Final = re.compile(r"(\d{1,15}):(\d{1,15})")


class _BadField(Exception):
    """A field cannot be read; the message names it."""


def checkpoint(site: Site, request: PageRequest, job_id: str) -> PageResponse:
    """Checkpoint now."""
    return _order(
        site,
        request,
        path("jobs", job_id, "checkpoint"),
        {},
        back=path("jobs", job_id),
        done="A checkpoint was ordered",
    )


def stop(site: Site, request: PageRequest, job_id: str) -> PageResponse:
    """Save, stop, and stay stopped."""
    body = {"checkpoint": "checkpoint" in request.form}
    return _order(
        site, request, path("jobs", job_id, "stop"), body, back=path("jobs", job_id), done="The stop was ordered"
    )


def resubmit(site: Site, request: PageRequest, job_id: str) -> PageResponse:
    """Save, stop and submit again."""
    back = path("jobs", job_id)
    try:
        body: dict[str, Any] = {}
        if text := request.form.get("from_step", "").strip():
            body["from_step"] = _whole(text, "from step")
        if text := request.form.get("skip", "").strip():
            body["skip"] = [_window(part) for part in text.split()]
    except _BadField as err:
        return site.go_to(back, Note("bad", f"Nothing was ordered: {err}"))
    return _order(site, request, path("jobs", job_id, "resubmit"), body, back=back, done="The resubmission was ordered")


def cancel(site: Site, request: PageRequest, incident_id: str) -> PageResponse:
    """End an Incident."""
    back = path("incidents", incident_id)
    return _order(site, request, path("incidents", incident_id, "cancel"), {}, back=back, done="The end was ordered")


def approve(site: Site, request: PageRequest, incident_id: str, approval_id: str) -> PageResponse:
    """Answer an approval."""
    back = path("incidents", incident_id)
    answer = request.form.get("answer", "")
    if answer not in ("approve", "deny"):
        return site.go_to(back, Note("bad", "Nothing was answered: it must be approve or deny"))
    body = {"answer": answer}
    if comment := request.form.get("comment", "").strip()[:MAX_COMMENT_CHARS]:
        body["comment"] = comment
    text = "Approved" if answer == "approve" else "Denied"
    return _order(site, request, path("incidents", incident_id, "approvals", approval_id), body, back=back, done=text)


def pause(site: Site, request: PageRequest) -> PageResponse:
    """Set or lift the global pause."""
    paused = request.form.get("paused") == "yes"
    done = "Rekindle is paused: nothing is done until the pause is lifted" if paused else "The pause is lifted"
    body: dict[str, Any] = {"paused": paused}
    if why := request.form.get("why", "").strip()[:MAX_COMMENT_CHARS]:
        body["why"] = why
    return _order(site, request, "/pause", body, back="/", method="PUT", done=done, is_whole=True)


def shadow(site: Site, request: PageRequest) -> PageResponse:
    """Put a Job or everything into shadow mode, or out of it."""
    scope, name, is_on = request.form.get("scope", ""), request.form.get("name", ""), request.form.get("on") == "yes"
    if scope not in ("everywhere", "job"):
        return site.go_to("/", Note("bad", "Nothing was switched: the scope must be everywhere or job"))
    body: dict[str, Any] = {"scope": scope, "on": is_on}
    if scope == "job":
        body["name"] = name
    back = path("jobs", name) if scope == "job" else "/"
    done = f"Shadow mode is {'on' if is_on else 'off'}"
    return _order(site, request, "/shadow", body, back=back, method="PUT", done=done, is_whole=True)


def repair(site: Site, request: PageRequest, cluster: str, node: str) -> PageResponse:
    """Reboot or replace a node."""
    back = path("clusters", cluster)
    do = request.form.get("do", "")
    if do not in ("reboot", "replace"):
        return site.go_to(back, Note("bad", "Nothing was ordered: it must be reboot or replace"))
    body = {"do": do}
    if why := request.form.get("why", "").strip()[:MAX_COMMENT_CHARS]:
        body["why"] = why
    where = path("clusters", cluster, "nodes", node, "repair")
    return _order(site, request, where, body, back=back, done=f"The {do} of {node} was ordered")


def _order(
    site: Site,
    request: PageRequest,
    where: str,
    body: Mapping[str, Any],
    *,
    back: str,
    done: str,
    method: str = "POST",
    is_whole: bool = False,
) -> PageResponse:
    """One order, and the way back. `is_whole`: what came of it stands in `done` alone."""
    if not site.can_order:
        return site.go_to(back, Note("bad", "Nothing was ordered: this console was started to look only"))
    key = request.form.get("key", "")
    if not _KEY.fullmatch(key):
        return site.go_to(back, Note("bad", "Nothing was ordered: the form has no key; load the page again"))
    try:
        answer = site.client.order(method, where, body, key=key)
    except CliError as err:
        text = str(err).replace(f"; repeat it with --key {key}", "")
        return site.go_to(back, Note("bad", f"Not done: {text}"))
    reason = "" if is_whole else word(answer, "reason")
    held = "".join(f" Held now: {word(hold, 'text')}." for hold in objects(answer, "held_by"))
    return site.go_to(back, Note("good", (f"{done}: {reason}." if reason not in ("", "-") else f"{done}.") + held))


def _whole(text: str, field: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 15):
        raise _BadField(f"{field} must be a whole number")
    return int(text)


def _window(text: str) -> list[int]:
    found = _WINDOW.fullmatch(text)
    if found is None or int(found[1]) >= int(found[2]):
        raise _BadField("skip must be windows like 100:120, separated by blanks")
    return [int(found[1]), int(found[2])]


ROUTES: Final[tuple[Route, ...]] = (
    (route("/jobs/{job_id}/checkpoint"), checkpoint),
    (route("/jobs/{job_id}/stop"), stop),
    (route("/jobs/{job_id}/resubmit"), resubmit),
    (route("/incidents/{incident_id}/cancel"), cancel),
    (route("/incidents/{incident_id}/approvals/{approval_id}"), approve),
    (route("/pause"), pause),
    (route("/shadow"), shadow),
    (route("/clusters/{cluster}/nodes/{node}/repair"), repair),
)

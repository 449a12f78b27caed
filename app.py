"""Every trigger and route, and nothing but triggers: parse, call, return.

Event handlers stay in this file: on Lambda a Blueprint's handler would bypass app.py and every middleware.
"""

from __future__ import annotations

from typing import Any

from chalice.app import Chalice, CloudWatchEvent, IAMAuthorizer, Rate, Response, SQSEvent

from chalicelib.api.problems import of_framework
from chalicelib.bootstrap import service, warm_up
from chalicelib.ingest.patterns import NOTICES, PATTERNS

app = Chalice(app_name="rekindle", configure_logs=False)
SIGNED = IAMAuthorizer()  # AWS credentials with execute-api:Invoke; nothing of this API is public
FORM = "application/x-www-form-urlencoded"  # as Slack sends
DELIVERIES = "arn:aws:sqs:us-east-1:000000000000:deliveries"  # in place of the stack's own queue (the merge template)


@app.on_cw_event(PATTERNS["hyperpod_event"], name="hyperpod_event")
def hyperpod_event(event: CloudWatchEvent) -> Any:
    """HyperPod cluster, node-health and cluster events."""
    return service().ingress.take("hyperpod_event", event.to_dict())


@app.on_cw_event(PATTERNS["training_job_event"], name="training_job_event")
def training_job_event(event: CloudWatchEvent) -> Any:
    """SageMaker training jobs' state changes."""
    return service().ingress.take("training_job_event", event.to_dict())


@app.on_cw_event(PATTERNS["alarm_event"], name="alarm_event")
def alarm_event(event: CloudWatchEvent) -> Any:
    """CloudWatch alarms and their contributors."""
    return service().ingress.take("alarm_event", event.to_dict())


@app.on_cw_event(PATTERNS["health_event"], name="health_event")
def health_event(event: CloudWatchEvent) -> Any:
    """AWS Health."""
    return service().ingress.take("health_event", event.to_dict())


@app.on_cw_event(PATTERNS["ec2_event"], name="ec2_event")
def ec2_event(event: CloudWatchEvent) -> Any:
    """EC2: Spot, rebalance, state changes, capacity."""
    return service().ingress.take("ec2_event", event.to_dict())


@app.on_cw_event(PATTERNS["monitor_event"], name="monitor_event")
def monitor_event(event: CloudWatchEvent) -> Any:
    """The monitor in the training process, over the custom bus (set in the merge template)."""
    return service().ingress.take("monitor_event", event.to_dict())


@app.on_cw_event(PATTERNS["agent_event"], name="agent_event")
def agent_event(event: CloudWatchEvent) -> Any:
    """The agents on Slurm head nodes, over the custom bus (set in the merge template)."""
    return service().ingress.take("agent_event", event.to_dict())


@app.on_cw_event(NOTICES, name="notice_event")
def notice_event(event: CloudWatchEvent) -> Any:
    """Our own notices, over the custom bus (set in the merge template): to one message per channel."""
    return service().fan_out.take(event.to_dict())


@app.on_sqs_message(queue_arn=DELIVERIES, batch_size=4, maximum_concurrency=5, name="deliver")
def deliver(event: SQSEvent) -> Any:
    """One message per notice and channel; what fails stays in the queue (ReportBatchItemFailures in the template)."""
    return service().deliver.take(event.to_dict())


@app.on_cw_event(PATTERNS["mailbox_event"], name="mailbox_event")
def mailbox_event(event: CloudWatchEvent) -> Any:
    """Replies and manifests appearing in the mailbox bucket."""
    return service().ingress.take("mailbox_event", event.to_dict())


@app.lambda_function(name="log_batch")
def log_batch(event: Any, _: Any) -> Any:
    """CloudWatch Logs subscriptions: health-agent lines."""
    return service().ingress.take("log_batch", event)


@app.schedule(Rate(1, unit=Rate.MINUTES), name="sweep")
def sweep(_: CloudWatchEvent) -> None:
    """Finds what lost events and lost wakes left behind."""
    service().observability.record_sweep(service().sweep.run())


@app.lambda_function(name="recover")
def recover(event: Any, context: Any) -> Any:
    """One durable execution per Incident; started by its alias only. Only this function loads the durable SDK."""
    from chalicelib.recovery.entry import durable_recovery

    ready = service()
    keeper = ready.clients("lambda")
    return durable_recovery(ready.look, ready.perform, ready.observability.record, client=keeper)(event, context)


def _answer(operation: str, **names: str) -> Response:
    request = app.current_request
    assert request is not None  # noqa: S101  Chalice sets it for every route; this tells the type checker
    body = request.raw_body
    raw = body if isinstance(body, bytes) else str(body or "").encode()
    answer = service().api.answer(operation, names, request.to_original_event(), raw)
    return Response(body=answer.text(), status_code=answer.status, headers=dict(answer.headers))


def _hook(name: str) -> Response:
    request = app.current_request
    assert request is not None  # noqa: S101  Chalice sets it for every route; this tells the type checker
    body = request.raw_body
    raw = body if isinstance(body, bytes) else str(body or "").encode()
    answer = service().hooks.answer(name, dict(request.headers), raw)
    return Response(body=answer.text(), status_code=answer.status, headers=dict(answer.headers))


def _slack(operation: str) -> Response:
    request = app.current_request
    assert request is not None  # noqa: S101  Chalice sets it for every route; this tells the type checker
    body = request.raw_body
    raw = body if isinstance(body, bytes) else str(body or "").encode()
    answer = service().slack_hooks.answer(operation, dict(request.headers), raw)
    return Response(body=answer.text() if answer.body else "", status_code=answer.status, headers=dict(answer.headers))


@app.middleware("all")
def within_its_time(event: Any, get_response: Any) -> Any:
    """No call of AWS is begun that would outlast the function."""
    service().clients.deadline.begin(getattr(event, "lambda_context", None) or event.context)
    return get_response(event)


@app.middleware("http")
def as_problem(event: Any, get_response: Any) -> Response:
    """What Chalice refuses by itself, and what fails here, is told like every other problem."""
    response: Response = get_response(event)
    told = of_framework(response.status_code, response.body, response.headers)
    return response if told is None else Response(body=told.text(), status_code=told.status, headers=dict(told.headers))


@app.route("/health", methods=["GET"], authorizer=SIGNED)
def health() -> Response:
    """Alive, and which stage."""
    return _answer("health")


@app.route("/status", methods=["GET"], authorizer=SIGNED)
def status() -> Response:
    """Figures for people: Jobs, open Incidents, pause."""
    return _answer("status")


@app.route("/jobs", methods=["GET"], authorizer=SIGNED)
def list_jobs() -> Response:
    """Protected Jobs."""
    return _answer("list_jobs")


@app.route("/jobs", methods=["POST"], authorizer=SIGNED)
def register_job() -> Response:
    """Protect a training job or a Slurm job."""
    return _answer("register_job")


@app.route("/openapi.json", methods=["GET"], authorizer=SIGNED)
def openapi() -> Response:
    """This API's own description."""
    return _answer("openapi")


@app.route("/jobs/{job_id}", methods=["GET"], authorizer=SIGNED)
def get_job(job_id: str) -> Response:
    """One Job with its Attempts."""
    return _answer("get_job", job_id=job_id)


@app.route("/jobs/{job_id}/checkpoint", methods=["POST"], authorizer=SIGNED)
def checkpoint_job(job_id: str) -> Response:
    """Checkpoint now."""
    return _answer("checkpoint_job", job_id=job_id)


@app.route("/jobs/{job_id}/resubmit", methods=["POST"], authorizer=SIGNED)
def resubmit_job(job_id: str) -> Response:
    """Save, stop, submit again."""
    return _answer("resubmit_job", job_id=job_id)


@app.route("/incidents", methods=["GET"], authorizer=SIGNED)
def list_incidents() -> Response:
    """Open or closed Incidents."""
    return _answer("list_incidents")


@app.route("/incidents/{incident_id}", methods=["GET"], authorizer=SIGNED)
def get_incident(incident_id: str) -> Response:
    """One Incident with its timeline."""
    return _answer("get_incident", incident_id=incident_id)


@app.route("/incidents/{incident_id}/timeline", methods=["GET"], authorizer=SIGNED)
def get_timeline(incident_id: str) -> Response:
    """The story of an Incident, a page at a time."""
    return _answer("get_timeline", incident_id=incident_id)


@app.route("/incidents/{incident_id}/report", methods=["GET"], authorizer=SIGNED)
def incident_report(incident_id: str) -> Response:
    """A fresh signed link to an Incident's page."""
    return _answer("incident_report", incident_id=incident_id)


@app.route("/incidents/{incident_id}/cancel", methods=["POST"], authorizer=SIGNED)
def cancel_incident(incident_id: str) -> Response:
    """End an Incident at its next look."""
    return _answer("cancel_incident", incident_id=incident_id)


@app.route("/quarantine", methods=["GET"], authorizer=SIGNED)
def list_quarantine() -> Response:
    """Events that could not be read."""
    return _answer("list_quarantine")


@app.route("/quarantine/redrive", methods=["POST"], authorizer=SIGNED)
def redrive_quarantine() -> Response:
    """Feed them in again."""
    return _answer("redrive_quarantine")


@app.route("/undelivered", methods=["GET"], authorizer=SIGNED)
def list_undelivered() -> Response:
    """Notices that did not reach a channel, and why."""
    return _answer("list_undelivered")


@app.route("/undelivered/redrive", methods=["POST"], authorizer=SIGNED)
def redrive_undelivered() -> Response:
    """Send them again."""
    return _answer("redrive_undelivered")


@app.route("/clusters", methods=["GET"], authorizer=SIGNED)
def list_clusters() -> Response:
    """Slurm clusters and their agents."""
    return _answer("list_clusters")


@app.route("/clusters/{cluster}", methods=["GET"], authorizer=SIGNED)
def get_cluster(cluster: str) -> Response:
    """One Slurm cluster with its nodes and runs."""
    return _answer("get_cluster", cluster=cluster)


@app.route("/policies", methods=["GET"], authorizer=SIGNED)
def list_policies() -> Response:
    """Every policy in brief."""
    return _answer("list_policies")


@app.route("/policies/validate", methods=["POST"], authorizer=SIGNED)
def validate_policy() -> Response:
    """Every problem of a document."""
    return _answer("validate_policy")


@app.route("/policies/{name}", methods=["GET"], authorizer=SIGNED)
def get_policy(name: str) -> Response:
    """One policy."""
    return _answer("get_policy", name=name)


@app.route("/policies/{name}", methods=["PUT"], authorizer=SIGNED)
def put_policy(name: str) -> Response:
    """Store a policy in place of the version that was read."""
    return _answer("put_policy", name=name)


@app.route("/policies/{name}/diff", methods=["POST"], authorizer=SIGNED)
def diff_policy(name: str) -> Response:
    """What would change, field by field."""
    return _answer("diff_policy", name=name)


@app.route("/prices", methods=["GET"], authorizer=SIGNED)
def get_prices() -> Response:
    """What an hour of each instance type costs."""
    return _answer("get_prices")


@app.route("/prices", methods=["PUT"], authorizer=SIGNED)
def put_prices() -> Response:
    """Store the price table in place of the version that was read."""
    return _answer("put_prices")


@app.route("/pause", methods=["PUT"], authorizer=SIGNED)
def set_pause() -> Response:
    """Set or lift the global pause."""
    return _answer("set_pause")


@app.route("/jobs/{job_id}/stop", methods=["POST"], authorizer=SIGNED)
def stop_job(job_id: str) -> Response:
    """Save, stop, and leave it stopped; a resubmission starts it again."""
    return _answer("stop_job", job_id=job_id)


@app.route("/jobs/{job_id}/curves", methods=["GET"], authorizer=SIGNED)
def job_curves(job_id: str) -> Response:
    """A run's curves: loss, steps, step time, gradient norm."""
    return _answer("job_curves", job_id=job_id)


@app.route("/jobs/{job_id}/ledger", methods=["GET"], authorizer=SIGNED)
def job_ledger(job_id: str) -> Response:
    """What a Job's Incidents cost and saved, and its ETTR."""
    return _answer("job_ledger", job_id=job_id)


@app.route("/incidents/{incident_id}/ledger", methods=["GET"], authorizer=SIGNED)
def incident_ledger(incident_id: str) -> Response:
    """What an Incident cost and saved, stage by stage."""
    return _answer("incident_ledger", incident_id=incident_id)


@app.route("/incidents/{incident_id}/postmortem", methods=["GET"], authorizer=SIGNED)
def postmortem(incident_id: str) -> Response:
    """An Incident's post-mortem in Markdown."""
    return _answer("postmortem", incident_id=incident_id)


@app.route("/ledger", methods=["GET"], authorizer=SIGNED)
def fleet_ledger() -> Response:
    """What all Incidents of so many days cost and saved."""
    return _answer("fleet_ledger")


@app.route("/jobs/{job_id}/drills", methods=["POST"], authorizer=SIGNED)
def start_drill(job_id: str) -> Response:
    """Rehearse a fault on a living run: real reads, real decisions, and nothing is done."""
    return _answer("start_drill", job_id=job_id)


@app.route("/drills/{drill_id}", methods=["GET"], authorizer=SIGNED)
def get_drill(drill_id: str) -> Response:
    """A rehearsal's result; kept for 30 days."""
    return _answer("get_drill", drill_id=drill_id)


@app.route("/switches", methods=["GET"], authorizer=SIGNED)
def read_switches() -> Response:
    """How pause, shadow mode and the breaker stand."""
    return _answer("read_switches")


@app.route("/shadow", methods=["PUT"], authorizer=SIGNED)
def set_shadow() -> Response:
    """Shadow mode for a Job, a cluster or everything: decide and tell, do nothing."""
    return _answer("set_shadow")


@app.route("/breaker/lift", methods=["POST"], authorizer=SIGNED)
def lift_breaker() -> Response:
    """Let everything go on that the fleet-wide breaker holds."""
    return _answer("lift_breaker")


@app.route("/approvals", methods=["GET"], authorizer=SIGNED)
def list_approvals() -> Response:
    """Every open question, the one that runs out first at the top."""
    return _answer("list_approvals")


@app.route("/incidents/{incident_id}/approvals/{approval_id}", methods=["POST"], authorizer=SIGNED)
def answer_approval(incident_id: str, approval_id: str) -> Response:
    """Approve or deny; the first answer counts."""
    return _answer("answer_approval", incident_id=incident_id, approval_id=approval_id)


@app.route("/clusters/{cluster}/nodes/{node}/repair", methods=["POST"], authorizer=SIGNED)
def repair_node(cluster: str, node: str) -> Response:
    """Reboot or replace a node; no job on it is ever killed."""
    return _answer("repair_node", cluster=cluster, node=node)


@app.route("/hooks/slack/actions", methods=["POST"], content_types=[FORM])
def slack_actions() -> Response:
    """Somebody pressed a button in Slack. Signed by Slack, not by IAM."""
    return _slack("slack_actions")


@app.route("/hooks/slack/commands", methods=["POST"], content_types=[FORM])
def slack_commands() -> Response:
    """Somebody typed /rekindle in Slack. Signed by Slack, not by IAM."""
    return _slack("slack_commands")


@app.route("/hooks/in/{name}", methods=["POST"], content_types=[])
def hook_in(name: str) -> Response:
    """Alerts of other people's monitoring. Authenticated by the source's own secret, not by IAM."""
    return _hook(name)


@app.route("/lemons", methods=["GET"], authorizer=SIGNED)
def list_lemons() -> Response:
    """Hardware with faults."""
    return _answer("list_lemons")


warm_up()

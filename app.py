"""Every trigger and route, and nothing but triggers: parse, call, return.

Event handlers stay in this file: on Lambda a Blueprint's handler would bypass app.py and every middleware.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from chalice.app import Chalice, CloudWatchEvent, IAMAuthorizer, Rate, Request, Response, SQSEvent

from chalicelib.bootstrap import operations, service, warm_up
from chalicelib.ingest.detail_types import NOTICES, PATTERNS

if TYPE_CHECKING:
    from chalicelib.api.problems import ApiResponse

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
    from chalicelib.recovery.workflow import durable_recovery

    ready = service()
    keeper = ready.clients("lambda")
    return durable_recovery(ready.look, ready.perform, ready.observability.record, client=keeper)(event, context)


def _raw() -> bytes:
    """The body of the present request, as it came."""
    body = _request().raw_body
    return body if isinstance(body, bytes) else str(body or "").encode()


def _request() -> Request:
    request = app.current_request
    assert request is not None  # noqa: S101  Chalice sets it for every route; this tells the type checker
    return request


def _response(answer: ApiResponse) -> Response:
    return Response(body=answer.text() if answer.body else "", status_code=answer.status, headers=dict(answer.headers))


def _operation(name: str) -> Callable[..., Response]:
    def answer(**names: str) -> Response:
        return _response(service().api.answer(name, names, _request().to_original_event(), _raw()))

    return answer


warm_up()  # before the routes are loaded: no garbage is looked for meanwhile
for operation in operations():  # chalicelib/api/operations/routes.py; none in a function that answers no requests
    app.route(operation.address, methods=[operation.method], authorizer=SIGNED, name=operation.name)(
        _operation(operation.name)
    )


@app.middleware("all")
def within_its_time(event: Any, get_response: Any) -> Any:
    """No call of AWS is begun that would outlast the function."""
    with service().clients.deadline.during(getattr(event, "lambda_context", None) or event.context):
        return get_response(event)


@app.middleware("http")
def as_problem(event: Any, get_response: Any) -> Response:
    """Chalice's own refusals and errors become problem documents, too."""
    from chalicelib.api.problems import of_framework

    response: Response = get_response(event)
    answer = of_framework(response.status_code, response.body, response.headers)
    return response if answer is None else _response(answer)


@app.route("/hooks/slack/actions", methods=["POST"], content_types=[FORM])
def slack_actions() -> Response:
    """A button was pressed in Slack. Authenticated by Slack's signature, not by IAM."""
    return _response(service().slack_hooks.answer("slack_actions", _request().headers, _raw()))


@app.route("/hooks/slack/commands", methods=["POST"], content_types=[FORM])
def slack_commands() -> Response:
    """`/rekindle` was typed in Slack. Authenticated by Slack's signature, not by IAM."""
    return _response(service().slack_hooks.answer("slack_commands", _request().headers, _raw()))


@app.route("/hooks/in/{name}", methods=["POST"], content_types=[])
def hook_in(name: str) -> Response:
    """Alerts of other monitoring. Authenticated by the source's own secret, not by IAM."""
    return _response(service().hooks.answer(name, _request().headers, _raw()))

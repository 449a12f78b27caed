"""Services over HTTP for boto3 clients of any process: requests and answers held against botocore's models.

A client finds them by its `endpoint_url`, or by `AWS_ENDPOINT_URL_<SERVICE>` in the environment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from moto.core.parse import PROTOCOL_PARSERS
from moto.core.serialize import SERIALIZERS
from moto.core.utils import get_service_model
from werkzeug.routing import Map, Rule
from werkzeug.wrappers import Request, Response

from localcloud.aws.answers import AwsError
from localcloud.aws.shapes import check_answer, request_problems
from localcloud.moto_server import LoopbackServer, Operation


class StandInService:
    """One AWS service behind HTTP. `service` is botocore's name of it; operations by AWS's names.

    What is not among the operations is answered as by a Region that does not know it: 404, UnknownOperationException.
    """

    def __init__(self, service: str, operations: Mapping[str, Operation]) -> None:
        self._service = service
        self._model = get_service_model(service)
        self._operations = operations
        rules = []
        for name in operations:
            http = self._model.operation_model(name).http
            path = http["requestUri"].partition("?")[0].replace("{", "<").replace("}", ">")
            rules.append(Rule(path, methods=[http["method"]], endpoint=name))
        self._routes = Map(rules, strict_slashes=False)

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        """The WSGI application."""
        request = Request(environ)
        answer = self._answer(request, environ)
        return answer(environ, start_response)

    def _answer(self, request: Request, environ: dict[str, Any]) -> Response:
        name, path = self._operation(request, environ)
        if name not in self._operations:
            body = '{"__type": "UnknownOperationException"}'
            headers = {"x-amzn-ErrorType": "UnknownOperationException"}
            return Response(body, 404, headers, content_type="application/json")
        operation = self._model.operation_model(name)
        parsed: dict[str, Any] = PROTOCOL_PARSERS[self._model.protocol](operation).parse(
            {
                "method": request.method,
                "values": request.values,
                "headers": request.headers,
                "body": request.get_data(),
                "url_path": request.path,
                "url_params": path,
            }
        )
        result: Any
        try:
            result = self._run(name, parsed)
        except AwsError as err:
            result = err
        serialized = SERIALIZERS[self._model.protocol](operation_model=operation).serialize(result)
        return Response(serialized["body"], serialized["status_code"], serialized["headers"])

    def _run(self, name: str, parsed: dict[str, Any]) -> dict[str, Any]:
        parsed = {key: value for key, value in parsed.items() if value != []}  # the parser's word for a list not sent
        if problems := request_problems(self._service, name, parsed):
            raise AwsError("ValidationError", "; ".join(problems))
        return check_answer(self._service, name, self._operations[name](parsed))

    def _operation(self, request: Request, environ: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        if self._model.protocol == "query":
            return str(request.values.get("Action", "")), {}
        from werkzeug.exceptions import HTTPException

        try:
            name, path = self._routes.bind_to_environ(environ).match()
        except HTTPException:
            return "", {}
        return str(name), dict(path)


@contextmanager
def served(service: str, operations: Mapping[str, Operation]) -> Iterator[str]:
    """Answer on a loopback port while this lasts; gives the endpoint's URL."""
    server = LoopbackServer(StandInService(service, operations), name=f"{service}-stand-in", port=0)
    server.start()
    try:
        yield server.url
    finally:
        server.close()

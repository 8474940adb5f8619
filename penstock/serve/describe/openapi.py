"""Describes the HTTP interface of one app as OpenAPI 3.1, for the one who asks, from the table of routes.

Replies that do not end (Server-Sent Events) and connections that are no longer HTTP (WebSocket) are not here but in
`/asyncapi.json` (`asyncapi.py`). Paths have names in the place of `{view}` and `{stream}`, so that 404 is no answer of
theirs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib.metadata import version

from penstock.json_schema import Spec, ref
from penstock.route import EVENT_FIELDS, Body, Parameter, Reply, Right, Route, Subject, Thing, schema_for
from penstock.serve.describe.audience import Audience
from penstock.serve.describe.components import SCHEMAS, SECURITY

_DESCRIPTION = (
    "As far as the one who asks may read and write. What stays open (Server-Sent Events under `/events`, WebSockets "
    "under `/socket` and `/publish`) is described by `/asyncapi.json`."
)
_MEANINGS = {
    400: "Something in the request is wrong",
    401: "No credential, or one that is unknown, revoked or expired",
    403: "The credential does not have the right, or a newer instance of this producer has taken over",
    404: "There is nothing of this name",
    406: "The header Accept leaves out what this path has",
    408: "The body came too slowly",
    409: "A sequence number is missing, a key is in use, the stream cannot be posted to, or there are too many",
    410: "The position is no longer kept",
    412: "The row is not what If-Match or If-None-Match requires",
    413: "The body is too large",
    415: "The content type or encoding is not known",
    429: "More than a stream's rate or a credential's limits allow: try again after the time in Retry-After",
    503: "Not ready, overloaded or lagging: try again after the time in Retry-After",
    504: "Not absorbed within the time that was to be waited",
    507: "No room: on the disk, or in the view's memory budget",
}
_NEEDS: dict[Right, str] = {
    "all": "the right to read everything (`read:*`)",
    "some": "the right to read something; what may not be read is left out",
    "any": "any credential",
    "admin": "the right `admin`",
    "ack": "the right to write or read the stream",
}


def openapi(routes: Iterable[Route], audience: Audience) -> Spec:
    """The whole document, as JSON types."""
    paths: Spec = {}
    for route in routes:
        for subject in audience.subjects(route) if route.summary and not route.stays else ():
            shown = route.shown_as.get(subject.thing.kind, route)
            path = paths.setdefault(route.address(subject.thing), {})
            path[route.method.lower()] = _operation(route, shown, subject)
            if route.name == "read_stream" and audience.application.stream(subject.thing.target) is None:
                path["post"] = _closed(subject.thing)
    return {
        "openapi": "3.1.0",
        "servers": [{"url": "/"}],
        "info": {"title": audience.application.name, "version": version("penstock"), "description": _DESCRIPTION},
        "security": [{"key": []}, {"token": []}, {}],
        "paths": dict(sorted(paths.items())),
        "components": {"schemas": SCHEMAS | audience.schemas, "securitySchemes": SECURITY},
    }


def _operation(route: Route, shown: Route, subject: Subject) -> Spec:
    """`shown` is the same route, or of a channel that of what it shows."""
    name = _operation_id(route, subject)
    operation: Spec = {"operationId": name, "summary": shown.summary.format(thing=subject.thing.words)}
    if parameters := list(_parameters(shown, subject)):
        operation["parameters"] = parameters
    if shown.body is not None:
        operation["requestBody"] = _body(shown.body, subject)
    replies = {str(reply.status): _reply(reply, subject, name) for reply in shown.replies}
    return operation | _secured(route, subject) | {"responses": _errors(*_common(route), *shown.errors) | replies}


def _operation_id(route: Route, subject: Subject) -> str:
    return f"{route.name}_{subject.thing.called}" if route.of else route.name


def _parameters(route: Route, subject: Subject) -> Iterator[Spec]:
    for parameter in route.parameters:
        if parameter is EVENT_FIELDS:
            yield from (_parameter(Parameter(name), subject) for name in subject.stream.events.names)
        elif not parameter.is_credential:
            yield _parameter(parameter, subject)


def _parameter(parameter: Parameter, subject: Subject) -> Spec:
    schema = schema_for(parameter.schema, subject)
    if parameter.form == "json":
        content = {"application/json": {"schema": schema}}
        return {"name": parameter.name, "in": "query", "description": parameter.words, "content": content}
    if parameter.form == "list":
        schema = {"type": "array", "items": schema, "minItems": 1}
    described: Spec = {
        "name": parameter.name,
        "in": parameter.place,
        "required": parameter.place == "path",
        "schema": schema | ({"description": parameter.words} if parameter.words else {}),
    }
    return described | ({"style": "form", "explode": False} if parameter.form == "list" else {})


def _body(body: Body, subject: Subject) -> Spec:
    described: Spec = {
        "content": {kind: {"schema": schema_for(schema, subject)} for kind, schema in body.content.items()}
    }
    described |= {"required": True} if body.required else {}
    return described | ({"description": body.words} if body.words else {})


def _reply(reply: Reply, subject: Subject, operation: str) -> Spec:
    response: Spec = {"description": reply.words}
    if reply.schema is not None:
        response["content"] = {reply.content: {"schema": schema_for(reply.schema, subject)}}
    if reply.headers:
        response["headers"] = reply.headers
    if reply.links:
        response["links"] = {
            link.name: {
                "operationId": link.operation or operation,
                "parameters": {link.parameter: f"$response.body#/{link.field}"},
            }
            for link in reply.links
        }
    return response


def _errors(*statuses: int) -> Spec:
    body = {"application/json": {"schema": ref("ErrorReply")}}
    return {str(status): {"description": _MEANINGS[status], "content": body} for status in statuses}


def _common(route: Route) -> tuple[int, ...]:
    """What the guard may answer."""
    if route.right == "open":
        return ()
    return (401, 403, 429) if EVENT_FIELDS in route.parameters else (400, 401, 403, 429)


def _secured(route: Route, subject: Subject) -> Spec:
    """Which right is needed; what is open to all says so."""
    if route.right == "open":
        return {"security": [{}]}
    needs = _NEEDS.get(route.right) or f"the right `{route.right}:{subject.thing.called}`"
    words = f"Needs {needs}, once the server has a key."
    if route.right != "write":
        return {"description": words}
    signed = subject.declared.signed if subject.declared and route.method == "POST" else None
    if signed:
        words += f" Or a signature in the style `{signed.style}`; one of the two is always needed."
    return {"description": words, "security": [{"key": []}, {"token": []}, {"beacon": []}, {}]}


def _closed(thing: Thing) -> Spec:
    """What a flow or the server itself writes."""
    words = f"The stream {thing.target} cannot be posted to"
    route = Route("POST /streams/{stream}", "write", "post_to", words, errors=(409,))
    return _operation(route, route, Subject(thing=thing))

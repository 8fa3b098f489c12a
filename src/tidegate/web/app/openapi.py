"""The OpenAPI description, generated from the endpoints' declarations and types.

The description always matches the routes, since both come from the same table. All errors share one schema.
"""

import re
from collections.abc import Iterable
from typing import Any

import msgspec

from tidegate import __version__
from tidegate.web.app.endpoint import Endpoint
from tidegate.web.app.http_response import ErrorAnswer

_TEMPLATE = "#/components/schemas/{name}"
_PARAMETER = re.compile(r"{(\w+)(?::\w+)?}")
_HEADERS = {
    "X-Session-Id": ("Your name for a conversation: 1 to 200 printable characters.", {"type": "string"}),
    "X-Busy": (
        "How a message is handled while a turn of the conversation is running.",
        {"type": "string", "enum": ["queue", "steer", "interrupt"]},
    ),
    "X-On-Disconnect": (
        "Whether the turn is cancelled or continues when you disconnect.",
        {"type": "string", "enum": ["cancel", "continue"]},
    ),
    "X-Events": ("`full`: progress as named events instead of comments.", {"type": "string", "enum": ["full"]}),
    "Idempotency-Key": (
        "For 24 hours, a request with the same key and body is treated as the same request.",
        {"type": "string"},
    ),
    "Range": ("`bytes=FIRST-LAST`: a part of the content.", {"type": "string", "pattern": "^bytes=[0-9]*-[0-9]*$"}),
    "Last-Event-ID": (
        "The id of the last event that you received.",
        {"type": "integer", "minimum": 0, "maximum": 2**53},
    ),
}
_PHRASES = {
    200: "OK.",
    201: "Created.",
    202: "Accepted.",
    204: "Done; the response has no body.",
    206: "The requested part.",
    400: "The request is invalid; `param` says where.",
    401: "No valid key or sign-in.",
    403: "You are not allowed to do this.",
    404: "It does not exist, or you are not allowed to see it.",
    409: "The request conflicts with the current state.",
    413: "A limit was exceeded; the message names it.",
    416: "The requested range is not available.",
    422: "The Idempotency-Key was used with a different body.",
    429: "Busy; `Retry-After` says when to try again.",
    502: "The model failed.",
    503: "Temporarily unavailable; `Retry-After` says when to try again.",
    504: "The model took too long.",
}


def describe_api(endpoints: Iterable[Endpoint]) -> dict[str, Any]:
    listed = list(endpoints)
    refs, components = _schemas(listed)
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in listed:
        path = _PARAMETER.sub(r"{\1}", endpoint.path)
        paths.setdefault(path, {})[endpoint.method.lower()] = _operation(endpoint, refs, components)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Tidegate",
            "version": __version__,
            "description": "An agent gateway. `/v1` is OpenAI's chat API; `/api` is its own API.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "key": {"type": "http", "scheme": "bearer", "description": "One of the gateway's keys."}
            },
        },
    }


def _schemas(endpoints: list[Endpoint]) -> tuple[dict[Any, Any], dict[str, Any]]:
    types: list[Any] = [ErrorAnswer]
    for endpoint in endpoints:
        types += [kind for kind in (endpoint.query, endpoint.body) if kind is not None]
        types += [kind for kind in endpoint.responses.values() if kind is not None and not isinstance(kind, str)]
    unique = list({repr(kind): kind for kind in types}.values())
    schemas, components = msgspec.json.schema_components(unique, ref_template=_TEMPLATE)
    return {repr(kind): schema for kind, schema in zip(unique, schemas, strict=True)}, components


def _operation(endpoint: Endpoint, refs: dict[Any, Any], components: dict[str, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "summary": endpoint.summary,
        "operationId": _name(endpoint),
        "parameters": [*_path(endpoint), *_query(endpoint, refs, components), *_headers(endpoint)],
        "responses": {
            **{str(status): _response(status, kind, refs) for status, kind in endpoint.responses.items()},
            **{str(status): _refusal(_PHRASES.get(status, "Refused.")) for status in _refusals(endpoint)},
            "default": _refusal("Any other error."),
        },
    }
    if not endpoint.is_open:
        operation["security"] = [{"key": []}]
    if endpoint.body is not None:
        schema = refs[repr(endpoint.body)]
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    return operation


def _name(endpoint: Endpoint) -> str:
    words = re.findall(r"\w+", _PARAMETER.sub(r"\1", endpoint.path)) or ["page"]
    return "_".join((endpoint.method.lower(), *words))


def _refusals(endpoint: Endpoint) -> list[int]:
    found = set(endpoint.refusals)
    if not endpoint.is_open:
        found |= {401, 403}
    if endpoint.query is not None or endpoint.body is not None or endpoint.headers:
        found.add(400)
    return sorted(found - set(endpoint.responses))


def _path(endpoint: Endpoint) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in _PARAMETER.findall(endpoint.path)
    ]


def _query(endpoint: Endpoint, refs: dict[Any, Any], components: dict[str, Any]) -> list[dict[str, Any]]:
    if endpoint.query is None:
        return []
    name = refs[repr(endpoint.query)]["$ref"].rpartition("/")[2]
    properties: dict[str, Any] = components[name]["properties"]
    return [
        {"name": field, "in": "query", "required": False, "schema": _without_null(schema)}
        for field, schema in properties.items()
    ]


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """Removes null from a query parameter's type. A query cannot contain null; nullable fields are left out instead."""
    choices = [choice for choice in schema.get("anyOf", ()) if choice != {"type": "null"}]
    rest = {key: value for key, value in schema.items() if key != "anyOf" and value is not None}
    return {**choices[0], **rest} if len(choices) == 1 else schema


def _headers(endpoint: Endpoint) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "header", "required": False, "description": _HEADERS[name][0], "schema": _HEADERS[name][1]}
        for name in endpoint.headers
    ]


def _response(status: int, kind: Any, refs: dict[Any, Any]) -> dict[str, Any]:
    response: dict[str, Any] = {"description": _PHRASES.get(status, "OK.")}
    if isinstance(kind, str):
        response["content"] = {kind: {}}
    elif kind is not None:
        response["content"] = {"application/json": {"schema": refs[repr(kind)]}}
    return response


def _refusal(text: str) -> dict[str, Any]:
    schema = {"$ref": _TEMPLATE.format(name=ErrorAnswer.__name__)}
    return {"description": text, "content": {"application/json": {"schema": schema}}}

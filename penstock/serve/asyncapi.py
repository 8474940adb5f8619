"""Describes what goes over sockets, events and long polls of one app as AsyncAPI 3.0, from the schemas of OpenAPI.

The document speaks from the edge's side: `send` is what clients get, `receive` what they may say. Everything that holds
over several messages (order, positions, resuming) is in docs/reference/protocol.md.
"""

from __future__ import annotations

from importlib.metadata import version

from penstock.config import Limits
from penstock.declaration import Application
from penstock.rights.credential import Credential
from penstock.serve.asyncapi_parts import Channel, channels_of, operations_of
from penstock.serve.asyncapi_publish import publish_channels
from penstock.serve.asyncapi_reading import reading_channels
from penstock.serve.asyncapi_webhooks import webhook_channels
from penstock.serve.documented import Documented
from penstock.serve.message_schemas import Columns, event_schemas, schemas_of
from penstock.serve.openapi_parts import SCHEMAS, Spec
from penstock.views.views import Views

_SECURITY: Spec = {
    "key": {"type": "http", "scheme": "bearer", "description": "A key of `penstock keys create`."},
    "token": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT", "description": "Where tokens are taken."},
    "ticket": {
        "type": "httpApiKey",
        "in": "query",
        "name": "ticket",
        "description": "Of `POST /tickets`: opens the events or the socket of one view, stream or channel.",
    },
}


def asyncapi(
    application: Application, views: Views, limits: Limits, columns: Columns, servers: Spec, credential: Credential
) -> Spec:
    """The whole document for one who asks, as JSON types; `columns` are those of the streams in the log."""
    documented = Documented(application, credential)
    events, classes = event_schemas(documented.written())
    things = list(documented.things())
    channels: list[Channel] = [
        *reading_channels(things),
        *publish_channels(events, limits),
        *webhook_channels(things),
    ]
    return {
        "asyncapi": "3.0.0",
        "info": {"title": application.name, "version": version("penstock")},
        "defaultContentType": "application/json",
        "servers": servers,
        "channels": channels_of(channels),
        "operations": operations_of(channels),
        "components": {
            "schemas": {name: SCHEMAS[name] for name in ("Position", "Error")}
            | schemas_of(documented, views, columns)
            | classes,
            "securitySchemes": _SECURITY,
        },
    }


def servers_at(host: str, *, secure: bool, open: bool) -> Spec:
    """This edge, as whoever asks has reached it. `open`: nobody needs a credential here."""
    needs: Spec = {} if open else {"security": [{"$ref": f"#/components/securitySchemes/{n}"} for n in _SECURITY]}
    end = "s" if secure else ""
    return {
        "http": {"host": host, "protocol": f"http{end}", **needs},
        "socket": {"host": host, "protocol": f"ws{end}", **needs},
    }

"""Reads what owners ask of their webhooks; what cannot be meant is refused with how to write it."""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

import msgspec
from aiohttp import web
from msgspec import UNSET, UnsetType

from penstock.errors import BadRequestError, SlowBodyError
from penstock.serve.webhooks.webhook import Shape

DIGEST_LEAST_S = 1.0
DIGEST_MOST_S = 86_400.0
OVERLAP_MOST_S = 7 * 86_400.0
_EXAMPLE = '{"url": "https://example.com/hook", "view": "topics"}'

T = TypeVar("T", bound=msgspec.Struct)


class NewWebhook(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The body of `POST /webhooks`."""

    url: str
    view: str | None = None
    stream: str | None = None
    channel: str | None = None
    where: str | None = None
    params: Any = None
    select: str | list[str] | None = None
    shape: Shape = "change"
    digest_s: float | None = None
    since: str | None = None

    def target(self) -> str:
        """The one name that is given: of a view, a stream or a channel."""
        given = [name for name in (self.view, self.stream, self.channel) if name is not None]
        if len(given) != 1:
            raise BadRequestError("a webhook needs a view, a stream or a channel", hint=f"send {_EXAMPLE}")
        return given[0]


class ChangedWebhook(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The body of `PATCH /webhooks/{id}`: what is left out stays."""

    url: str | UnsetType = UNSET
    where: str | UnsetType | None = UNSET
    params: Any = UNSET
    select: str | list[str] | UnsetType | None = UNSET
    shape: Shape | UnsetType = UNSET
    digest_s: float | UnsetType | None = UNSET
    enabled: bool | UnsetType = UNSET

    def given(self) -> dict[str, Any]:
        """The fields of the definition that change."""
        found = {name: getattr(self, name) for name in self.__struct_fields__ if name != "enabled"}
        return {name: value for name, value in found.items() if value is not UNSET}


class NewSecret(msgspec.Struct, forbid_unknown_fields=True):
    """The body of `POST /webhooks/{id}/secret`."""

    overlap_s: float | None = None


class Replay(msgspec.Struct, forbid_unknown_fields=True):
    """The body of `POST /webhooks/{id}/replay`."""

    since: str


async def body_of(request: web.Request, kind: type[T], pause_s: float, example: str = _EXAMPLE) -> T:
    """The body as this class. Raises `BadRequestError`; one that is too large is a 413."""
    try:
        async with asyncio.timeout(pause_s):
            raw = await request.read()
        return msgspec.json.decode(raw or b"{}", type=kind)
    except TimeoutError:
        raise SlowBodyError("the body did not come in time", hint="send it again") from None
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise BadRequestError("the body is not what this takes", detail=str(error), hint=f"send {example}") from None
    except RecursionError:
        raise BadRequestError("the body is nested deeper than can be read") from None


def checked_digest(shape: str, digest_s: float | None) -> float | None:
    """How often a digest is sent; raises `BadRequestError` for what does not fit its shape."""
    if shape != "digest":
        if digest_s is not None:
            raise BadRequestError("'digest_s' is for the shape 'digest'", hint='add "shape": "digest"')
        return None
    if digest_s is None or not DIGEST_LEAST_S <= digest_s <= DIGEST_MOST_S:
        raise BadRequestError(
            "a digest needs 'digest_s', the seconds between two of them",
            hint=f"use {DIGEST_LEAST_S:g} to {DIGEST_MOST_S:g}",
        )
    return digest_s


def checked_overlap(overlap_s: float | None, default_s: float) -> float:
    if overlap_s is None:
        return default_s
    if not 0 <= overlap_s <= OVERLAP_MOST_S:
        raise BadRequestError(f"overlap_s={overlap_s:g} is not possible", hint=f"use 0 to {OVERLAP_MOST_S:g} seconds")
    return overlap_s

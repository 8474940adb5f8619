"""What an edge is made from, and its log: in its own hand, or in that of another edge while this one only reads."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, NoReturn

from aiohttp import web

from penstock.clock import Clock, SystemClock
from penstock.collect.ways import pixel
from penstock.config import Folder, Limits
from penstock.declaration import Application
from penstock.errors import FolderMismatchError
from penstock.log.control import ControlFollower
from penstock.log.group_commit import GIVE_UP_S, GroupCommit
from penstock.log.log import Log, LogReader
from penstock.observe.metrics import Observer
from penstock.rights.guard import refused_with
from penstock.rights.inbox import Inbox
from penstock.run.announcement import WritingEdge
from penstock.run.security import Security
from penstock.serve.health import Checks

LOOK_S = 1.0
"""How often an edge that only reads looks whether its data folder is still the same."""


@dataclass(frozen=True)
class Setting:
    """What both halves of an edge are made from."""

    application: Application
    folder: Folder
    host: str = "127.0.0.1"
    security: Security = field(default_factory=Security)
    limits: Limits = field(default_factory=Limits)
    clock: Clock = field(default_factory=SystemClock)
    observer: Observer = field(default_factory=Observer)


class WrittenLog:
    """In the hands of the one process that writes it."""

    def __init__(self, setting: Setting, opened: AsyncExitStack, log: Log) -> None:
        self.log = log
        self.group = GroupCommit(
            self.log,
            unwritten_bytes=setting.limits.unwritten_bytes,
            give_up_s=log.answer_s,
            withdraw=log.answer_s < GIVE_UP_S,
        )
        opened.push_async_callback(asyncio.to_thread, self.group.close)
        self.memory = self.log.memory()
        self.inbox = Inbox(setting.folder.inbox)

    async def remember(self, values: Mapping[str, Any]) -> None:
        """Let others keep a word in the log's control stream; durable on return."""
        await asyncio.wrap_future(self.group.submit([], values))

    async def until_replaced(self) -> NoReturn:
        """Raises `StaleTermError` when another process writes the log."""
        while True:
            self.log.check_turn()
            await asyncio.sleep(LOOK_S)

    @property
    def checks(self) -> Checks:
        return {"collect": lambda: self.group.problem or True}


class FollowedLog:
    """In the hands of another edge; `memory` follows what that one writes, well within a second."""

    inbox = None
    checks: Checks = {}

    def __init__(self, folder: Folder, log: LogReader, opened: AsyncExitStack) -> None:
        self.refusal = WritingEdge(folder).refusal
        follower = ControlFollower(log)
        opened.push_async_callback(asyncio.to_thread, follower.close)
        self.memory = follower.map
        self._root = folder.root
        self._inode = os.stat(self._root).st_ino

    async def remember(self, values: Mapping[str, Any]) -> NoReturn:
        raise self.refusal()

    async def refuse(self, request: web.Request) -> NoReturn:
        """The handler of what only the edge that writes can do."""
        raise self.refusal(request.url.host)

    @refused_with(pixel.refusal)
    async def refuse_pixel(self, request: web.Request) -> NoReturn:
        """The same for whoever wants an image."""
        await self.refuse(request)

    async def until_gone(self) -> NoReturn:
        """Raises `FolderMismatchError` when the data folder was removed, or another one is in its place."""
        while self._is_there():  # noqa: ASYNC110
            await asyncio.sleep(LOOK_S)
        raise FolderMismatchError(
            f"the data folder '{self._root}' was removed or replaced while it was read", hint="start this edge again"
        )

    def _is_there(self) -> bool:
        try:
            return os.stat(self._root).st_ino == self._inode
        except OSError:
            return False

"""Takes secrets out of any text that is about to be written down, whoever wrote them into it.

Nothing of ours puts a secret into a message. But a library quotes a request line it cannot read, and a request line may
hold `?key=`; so every line of a child's log goes through here.
"""

from __future__ import annotations

import logging
import re

_SECRETS = (
    (re.compile(r"(psk_[0-9a-f]{1,16}_)[0-9a-zA-Z]+"), r"\1***"),
    (re.compile(r"(?i)((?:bearer|basic)(?: |%20)+)[^\s\"'\\,;]+"), r"\1***"),
    (re.compile(r"([?&](?:key|ticket)=)[^&\s\"'\\]+"), r"\1***"),
    (re.compile(r"(pst_[0-9a-f]{1,16}\.)[\w-]+(?:\.[\w-]*)?"), r"\1***"),
    (re.compile(r"\beyJ[\w-]+\.[\w-]*\.[\w-]*"), "***"),
    (re.compile(r"(whsec_)[\w+/=-]+"), r"\1***"),
)


def redacted(text: str) -> str:
    """The text without keys, tokens and webhook secrets.

    >>> redacted("GET /streams/visits/pixel.gif?key=psk_0a1b_77ff&page=1")
    'GET /streams/visits/pixel.gif?key=***&page=1'
    """
    for pattern, instead in _SECRETS:
        text = pattern.sub(instead, text)
    return text


class RedactingFormatter(logging.Formatter):
    """A formatter whose lines, with their stack traces, hold no secret."""

    def format(self, record: logging.LogRecord) -> str:
        return redacted(super().format(record))

"""What the process says: one line per event, JSON where a program reads it, coloured text on a terminal."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import MutableMapping
from typing import Any

import structlog

LEVELS = {"debug": 10, "info": 20, "warn": 30, "warning": 30, "error": 40}
_PASSWORD = re.compile(r"(\w+://[^\s:/@]*):[^\s/@]+@")


def configure(level: str, form: str) -> None:
    """`form`: `json`, `plain`, or `auto`, which is text on a terminal and JSON elsewhere."""
    number = LEVELS[level]
    on_terminal = sys.stdout.isatty()
    as_json = form == "json" or (form == "auto" and not on_terminal)
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
        hide_passwords,
    ]
    rendered: list[structlog.typing.Processor] = (
        [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
        if as_json
        else [structlog.dev.ConsoleRenderer(colors=on_terminal, exception_formatter=structlog.dev.plain_traceback)]
    )
    structlog.configure(
        processors=[*shared, *rendered],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.PrintLoggerFactory(sys.stdout),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stdout)
    formatter = structlog.stdlib.ProcessorFormatter(
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *rendered],
        foreign_pre_chain=shared,
    )
    handler.setFormatter(formatter)
    logging.basicConfig(handlers=[handler], level=max(number, logging.WARNING), force=True)


def hide_passwords(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Errors of drivers may quote the URL that they were given."""
    for key, value in event.items():
        if isinstance(value, str) and "://" in value:
            event[key] = _PASSWORD.sub(r"\1:***@", value)
    return event

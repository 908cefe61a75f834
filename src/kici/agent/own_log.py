"""The agent's own log, on standard error: JSON, or text for a terminal.

Tokens are cut out of every value. Tracebacks show no local variables: those of a job hold its secrets.
"""

from __future__ import annotations

import re
import sys
from typing import Any

import structlog

from kici.agent.settings import Settings

_json = structlog.processors.JSONRenderer()
_TOKEN = re.compile(r"\bk[ajc]t_[0-9a-f]{8,}")


def configure(settings: Settings) -> None:
    plain = settings.log_format == "plain" or (settings.log_format == "auto" and sys.stderr.isatty())
    renderer: Any = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty()) if plain else _json
    level = {"warn": "warning"}.get(settings.log_level, settings.log_level)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            _without_tokens,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )


def _without_tokens(_logger: Any, _method: str, event: Any) -> Any:
    return {key: _clean(value) for key, value in event.items()}


def _clean(value: Any) -> Any:
    match value:
        case str():
            return _TOKEN.sub(lambda found: f"{found[0][:4]}***", value)
        case list() | tuple():
            return [_clean(item) for item in value]
        case dict():
            return {key: _clean(item) for key, item in value.items()}
        case _:
            return value

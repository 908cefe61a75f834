"""Words such as `pr:closed` or `kici_event:built` → what their event says beside the facts of git.

A trigger, if there is one, is asked first: the event is one that it takes, as far as its filters tell.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kici.engine import json_path, patterns
from kici.engine import lock_triggers as lock
from kici.engine.errors import EngineError
from kici.engine.events import EventType
from kici.engine.lock_triggers import Expected, Pattern, Regex, Trigger
from kici.engine.trigger_checks import EVENT_TYPES
from kici.errors import KiciError
from kici.nearest import nearest


class UnknownEvent(KiciError):
    """A word that means no event, or a file that holds none."""

    code = "event_unknown"


_PR = "pr"
_LIFECYCLE = "lifecycle"
KINDS = (*(_PR if one is EventType.PULL_REQUEST else str(one) for one in EventType), _LIFECYCLE)
_SHORT = {"open": "opened", "sync": "synchronize", "close": "closed", "reopen": "reopened"}
_ACTIONS = {
    "comment": "created",
    "review": "submitted",
    "review_comment": "created",
    "release": "published",
    "workflow_run": "completed",
    "star": "created",
    "watch": "started",
}
_FORGE_NAMES = {"comment": "issue_comment", "review": "pull_request_review", "dispatch": "repository_dispatch"}


def split(word: str) -> tuple[str, str]:
    """Kind and what stands after the colon. Raises `UnknownEvent` with the nearest kind."""
    kind, _, detail = word.partition(":")
    if kind not in KINDS:
        raise UnknownEvent(
            f"there is no event {kind!r}{nearest(kind, KINDS)}; there are {', '.join(KINDS)}, with details such as"
            " pr:closed or kici_event:NAME, and files that end with .json"
        )
    return kind, detail


def kind_of(trigger: Trigger) -> str:
    if isinstance(trigger, lock.LifecycleTrigger):
        return _LIFECYCLE
    found = EVENT_TYPES[type(trigger)]
    return _PR if found is EventType.PULL_REQUEST else str(found)


def fields(kind: str, detail: str, trigger: Trigger | None, ref: str) -> dict[str, Any]:
    """Of the event, without those that git tells. `ref` is the branch, or the tag if one was asked for."""
    found = _plain(kind, detail, ref)
    if trigger is not None:
        found |= _taken_by(trigger, detail, ref)
    if kind in _ACTIONS:
        found["action"] = detail or found.get("action") or _ACTIONS[kind]
    if "forge_event" not in found and kind not in ("manual", "schedule", "kici_event"):
        found["forge_event"] = _FORGE_NAMES.get(kind, kind)
    return found


def _plain(kind: str, detail: str, ref: str) -> dict[str, Any]:
    """Without a trigger to ask."""
    match kind:
        case "pr":
            action = _SHORT.get(detail, detail) or "synchronize"
            return {"type": EventType.PULL_REQUEST, "action": action, "pr_number": 1, "base_branch": "main"}
        case "lifecycle":
            job = detail in ("job_complete", "job_failed")
            kinds = EventType.JOB_COMPLETE if job else EventType.WORKFLOW_COMPLETE
            return {
                "type": kinds,
                "state": "failed" if detail == "job_failed" else "success",
                "source_repo": "other/repo",
            }
        case "workflow_complete" | "job_complete":
            return {"type": EventType(kind), "state": detail or "success", "source_repo": "other/repo"}
        case "review" | "review_comment":
            return {
                "type": EventType(kind),
                "pr_number": 1,
                "issue_number": 1,
                "state": "commented",
                "base_branch": "main",
            }
        case "comment":
            return {"type": EventType(kind), "issue_number": 1, "body": "A comment"}
        case "create" | "delete":
            name = "v1.0.0" if detail == "tag" else "feature"
            return {"type": EventType(kind), "ref_type": detail or "branch", "event_name": name}
        case "generic_webhook":
            return {"type": EventType(kind), "source": detail, "event_name": "default"}
        case "webhook":
            return {"type": EventType(kind), "forge_event": detail}
        case "schedule":
            return {"type": EventType(kind), "event_name": detail, "tz": "UTC"}
        case "status" | "workflow_run":
            return {"type": EventType(kind), "state": "success", "event_name": "" if kind == "workflow_run" else detail}
        case "dispatch" | "kici_event":
            return {"type": EventType(kind), "event_name": detail}
        case "release":
            return {"type": EventType(kind), "tag": "v1.0.0", "event_name": "v1.0.0"}
    return {"type": EventType(kind)}


def _taken_by(trigger: Trigger, detail: str, ref: str) -> dict[str, Any]:
    match trigger:
        case lock.PrTrigger():
            actions = trigger.events
            found = {"base_branch": sample(trigger.target, "main")}
            if not detail and "synchronize" not in actions and actions:
                found["action"] = actions[0]
            return found
        case lock.CommentTrigger():
            number = {"pr_number": 1} if trigger.source == ("pr",) else {}
            return {"action": _first(trigger.actions), "body": _text(trigger.body_match), **number}
        case lock.ReviewTrigger():
            return {"action": _first(trigger.actions), "state": _first(trigger.states) or "commented"}
        case lock.ReviewCommentTrigger() | lock.ReleaseTrigger() | lock.StarTrigger() | lock.WatchTrigger():
            return {"action": _first(trigger.actions)}
        case lock.CreateTrigger() | lock.DeleteTrigger():
            kind = detail or _first(trigger.ref_types) or "branch"
            return {"ref_type": kind, "event_name": sample(trigger.patterns, "v1.0.0" if kind == "tag" else "feature")}
        case lock.StatusTrigger():
            return {
                "event_name": detail or sample(trigger.contexts, "ci"),
                "state": _first(trigger.states) or "success",
            }
        case lock.WorkflowRunTrigger():
            return {
                "action": _first(trigger.actions),
                "event_name": _first(trigger.workflows),
                "state": _first(trigger.conclusions) or "success",
            }
        case lock.WebhookTrigger():
            return {"forge_event": detail or _first(trigger.events), "action": _first(trigger.actions)}
        case lock.DispatchTrigger():
            return {"event_name": detail or _first(trigger.types)}
        case _:
            return _internal(trigger, detail)


def _internal(trigger: Trigger, detail: str) -> dict[str, Any]:
    match trigger:
        case lock.GenericWebhookTrigger():
            name = _first(trigger.events) or "default"
            return {"source": detail or trigger.source, "event_name": name, "payload": _payload(trigger.match)}
        case lock.KiciEventTrigger():
            return {
                "event_name": detail or trigger.name,
                "source_repo": _first(trigger.source) or "other/repo",
                "payload": _payload(trigger.match),
            }
        case lock.WorkflowCompleteTrigger():
            return {
                "workflow": _first(trigger.name) or "another",
                "state": detail or _first(trigger.status) or "success",
                "source_repo": _first(trigger.source) or "other/repo",
            }
        case lock.JobCompleteTrigger():
            return {
                "workflow": _first(trigger.workflow) or "another",
                "job": _first(trigger.job) or "job",
                "state": detail or _first(trigger.status) or "success",
                "source_repo": _first(trigger.source) or "other/repo",
            }
        case lock.ScheduleTrigger():
            return {"event_name": detail or trigger.cron, "tz": trigger.tz}
        case lock.LifecycleTrigger():
            return {
                **_plain(_LIFECYCLE, detail or _first(trigger.events), ""),
                "workflow": "another",
                "source_repo": _first(trigger.sources) or "other/repo",
            }
    return {}


def sample(wanted: Sequence[Pattern], otherwise: str) -> str:
    """A text that the patterns take, where that is easily found; `otherwise` if it is one or none is."""
    candidates = [otherwise, *(_literal(pattern) for pattern in wanted)]
    try:
        return next((one for one in candidates if patterns.matches(wanted, one)), otherwise)
    except EngineError:  # said when it was compiled
        return otherwise


def _text(wanted: Sequence[Pattern]) -> str:
    candidates = ["A comment", *(_literal(pattern) for pattern in wanted)]
    return next((one for one in candidates if patterns.text_matches(wanted, one)), "A comment")


def _literal(pattern: Pattern) -> str:
    if isinstance(pattern, Regex):
        return pattern.regex.removeprefix("^").removesuffix("$").replace("\\", "")
    return pattern.replace("**", "x").replace("*", "1").replace("?", "1")


def _payload(wanted: Mapping[str, Expected]) -> Any:
    """The smallest one that has these values at these paths."""
    payload: Any = {}
    for path, expected in wanted.items():
        one = expected[0] if isinstance(expected, tuple) else expected
        payload = _put(payload, json_path.parse(path), _literal(one) if isinstance(one, Regex) else one)
    return payload


def _put(into: Any, parts: tuple[str | int, ...], value: Any) -> Any:
    if not parts:
        return value
    first, rest = parts[0], parts[1:]
    if isinstance(first, int):
        many = list(into) if isinstance(into, list) else []
        many += [{}] * (first + 1 - len(many))
        many[first] = _put(many[first], rest, value)
        return many
    some = dict(into) if isinstance(into, dict) else {}
    some[first] = _put(some.get(first, {}), rest, value)
    return some


def _first(words: Sequence[str]) -> str:
    return words[0] if words else ""

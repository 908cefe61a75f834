"""Triggers of the SDK → structs of the lock file."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from kici.engine import cron as engine_cron
from kici.engine import json_path, patterns
from kici.engine import lock_triggers as lock
from kici.engine.errors import EngineError
from kici.engine.lock_triggers import Expected, Scalar, Trigger
from kici.lowering.inputs import lowered_inputs
from kici.lowering.patterns import lowered_patterns
from kici.sdk import forge_triggers as forge
from kici.sdk import internal_triggers as internal
from kici.sdk import triggers as sdk
from kici.sdk.internal_triggers import Matches
from kici.sdk.problems import Location, refuse


def lowered_triggers(trigger: sdk.Trigger, subject: str) -> Iterator[Trigger]:
    """A push that names tags becomes two."""
    where = trigger.location
    match trigger:
        case sdk.Push(branches, tags, paths):
            if branches is not None:
                yield lock.PushTrigger(lowered_patterns(branches, subject, where), paths)
            if tags is not None:
                yield lock.TagTrigger(lowered_patterns(tags, subject, where))
        case sdk.Tag(names):
            yield lock.TagTrigger(lowered_patterns(names, subject, where))
        case sdk.Pr(events, target, source, paths):
            yield lock.PrTrigger(
                events, lowered_patterns(target, subject, where), lowered_patterns(source, subject, where), paths
            )
        case sdk.Dispatch(types, inputs):
            yield lock.DispatchTrigger(types, lowered_inputs(inputs, f"{subject}: dispatch(…)", where))
        case sdk.Manual(inputs):
            yield lock.ManualTrigger(lowered_inputs(inputs, f"{subject}: manual(…)", where))
        case _:
            yield from _of_forge(trigger, subject, where)


def _of_forge(trigger: sdk.Trigger, subject: str, where: Location) -> Iterator[Trigger]:
    match trigger:
        case forge.Comment(actions, source, body):
            yield lock.CommentTrigger(actions, source, lowered_patterns(body, subject, where))
        case forge.Review(actions, states):
            yield lock.ReviewTrigger(actions, states)
        case forge.ReviewComment(actions):
            yield lock.ReviewCommentTrigger(actions)
        case forge.Release(actions):
            yield lock.ReleaseTrigger(actions)
        case forge.Create(ref_types, refs):
            yield lock.CreateTrigger(ref_types, lowered_patterns(refs, subject, where))
        case forge.Delete(ref_types, refs):
            yield lock.DeleteTrigger(ref_types, lowered_patterns(refs, subject, where))
        case forge.Status(contexts, states):
            yield lock.StatusTrigger(lowered_patterns(contexts, subject, where), states)
        case forge.WorkflowRun(actions, workflows, conclusions):
            yield lock.WorkflowRunTrigger(actions, workflows, conclusions)
        case forge.Fork():
            yield lock.ForkTrigger()
        case forge.Star(actions):
            yield lock.StarTrigger(actions)
        case forge.Watch(actions):
            yield lock.WatchTrigger(actions)
        case forge.Webhook(events, actions):
            yield lock.WebhookTrigger(events, actions)
        case _:
            yield from _internal(trigger, subject, where)


def _internal(trigger: sdk.Trigger, subject: str, where: Location) -> Iterator[Trigger]:
    match trigger:
        case internal.GenericWebhook(source, events, match, not_):
            wanted, unwanted = _expected(match, subject, where), _expected(not_, subject, where)
            yield lock.GenericWebhookTrigger(source, events, wanted, unwanted)
        case internal.KiciEvent(name, match, not_, sources):
            wanted, unwanted = _expected(match, subject, where), _expected(not_, subject, where)
            yield lock.KiciEventTrigger(name, wanted, unwanted, sources)
        case internal.WorkflowComplete(names, status, sources):
            yield lock.WorkflowCompleteTrigger(names, status, sources)
        case internal.JobComplete(workflows, jobs, status, sources):
            yield lock.JobCompleteTrigger(workflows, jobs, status, sources)
        case internal.Schedule(cron, tz, inputs):
            lowered = lowered_inputs(inputs, f"{subject}: schedule(…)", where)
            for name, one in (lowered or {}).items():
                if one.required:
                    message = f"schedule(…): input {name!r} has no default, and nobody gives it to a schedule: add one"
                    refuse(subject, message, where)
            _check(partial(engine_cron.parse, cron), f"{subject}: schedule(…)", where)
            _check(partial(engine_cron.check_zone, tz), f"{subject}: schedule(…)", where)
            yield lock.ScheduleTrigger(cron, tz, lowered)
        case internal.Lifecycle(events, sources):
            yield lock.LifecycleTrigger(events, sources)
        case _:
            refuse(subject, f"on: {trigger!r} is no trigger: write push(…), pr(…), tag(…) or manual()", where)


def _expected(matches: Matches, subject: str, where: Location) -> dict[str, Expected]:
    found: dict[str, Expected] = {}
    for path, values in matches:
        _check(partial(json_path.parse, path), subject, where)
        several = tuple(_value(one, subject, where) for one in values)
        found[path] = several[0] if len(several) == 1 else several
    return found


def _check(check: Callable[[], object], subject: str, where: Location) -> None:
    try:
        check()
    except EngineError as error:
        refuse(subject, str(error), where)


def _value(value: Any, subject: str, where: Location) -> Scalar | lock.Regex:
    if isinstance(value, re.Pattern):
        (lowered,) = lowered_patterns([value], subject, where)
        _check(partial(patterns.check, lowered), subject, where)
        return lowered
    return value  # type: ignore[no-any-return]

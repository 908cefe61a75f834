"""Of whose ends a workflow wants to be told: what can be asked quickly, before its triggers are matched."""

from __future__ import annotations

from kici.engine.lock_triggers import JobCompleteTrigger, LifecycleTrigger, WorkflowCompleteTrigger
from kici.engine.lockfile import LockWorkflow

WORKFLOW = "workflow_complete"
JOB = "job_complete"
ANY = "*"


def key(kind: str, workflow: str) -> str:
    return f"{kind}:{workflow}"


def listens_to(workflow: LockWorkflow) -> list[str]:
    """Keys of the ends that its triggers may take; other filters of theirs are not looked at."""
    found: set[str] = set()
    for trigger in workflow.triggers:
        match trigger:
            case WorkflowCompleteTrigger():
                found |= {key(WORKFLOW, name) for name in trigger.name or (ANY,)}
            case JobCompleteTrigger():
                found |= {key(JOB, name) for name in trigger.workflow or (ANY,)}
            case LifecycleTrigger():
                found |= {key(WORKFLOW if event == WORKFLOW else JOB, ANY) for event in trigger.events}
    return sorted(found)

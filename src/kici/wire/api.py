"""Bodies of the HTTP API: what the server answers and the programs read. Keys are camelCase, times ISO 8601."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal

from msgspec import Struct


class Body(Struct, rename="camel", frozen=True):
    pass


class Problem(Body, frozen=True):
    """Every answer ≥ 400."""

    error: str
    error_code: str = "error"
    details: list[str] = []


class Run(Body, frozen=True):
    run_id: str
    workflow_name: str
    status: str
    provider: str
    repo_identifier: str
    ref: str
    sha: str
    started_at: datetime | None = None
    completed_at: datetime | None = None
    duration_ms: int | None = None
    parent_run_id: str | None = None
    triggered_by: str | None = None
    cancelled_by: str | None = None
    failure_reason: str | None = None
    environment: str | None = None
    trust_tier: str | None = None
    lock_file_source: str | None = None
    delivery_id: str | None = None
    trigger_event: str | None = None
    commit_message: str | None = None
    created_at: datetime | None = None
    original_run_id: str | None = None
    """Of a rerun: the first run of the chain."""
    rerun_mode: str | None = None
    """Of a rerun: `all`, `failed` or `job`."""
    changed: str | None = None
    """How many files counted as changed, and since which commit; absent in lists, and where no filter asked."""
    changed_base: str | None = None
    """That commit; absent if it is not known which files changed."""


class RunList(Body, frozen=True):
    runs: list[Run]
    total: int
    limit: int
    offset: int


class RunAnswer(Body, frozen=True):
    run: Run


class Annotation(Body, frozen=True):
    """A remark of a step about a line of the repository."""

    level: str
    """`notice`, `warning`, `error`"""
    message: str
    file: str = ""
    line: int = 0


class Step(Body, frozen=True):
    step_index: int
    step_name: str
    status: str
    step_type: str = "step"
    attempt: int = 1
    started_at: datetime | None = None
    completed_at: datetime | None = None
    duration_ms: int | None = None
    exit_code: int | None = None
    error_message: str | None = None
    """Why it did not succeed, in one sentence."""
    reason: str | None = None
    """Of what kind that is: `exit_code`, `signal`, `out_of_memory`, `disk_full`, `timeout`, `cancelled`, `error`,
    `runner`, `preparation`; more may come. Absent of a step that succeeded."""
    signal: str | None = None
    """`SIGKILL`: what killed its command."""
    last_lines: str | None = None
    """The end of what its commands wrote."""
    peak_memory_bytes: int | None = None
    """Of all the job until it ended."""
    continue_on_error: bool = False
    annotations: list[Annotation] = []
    summary: str | None = None
    """Markdown."""


class Job(Body, frozen=True):
    job_id: str
    job_name: str
    base_job_name: str
    status: str
    attempt: int = 0
    matrix_values: dict[str, str] | None = None
    agent_id: str | None = None
    started_at: datetime | None = None
    completed_at: datetime | None = None
    duration_ms: int | None = None
    error_message: str | None = None
    """Why it did not succeed, in one sentence."""
    reason: str | None = None
    """Of what kind that is; as a step's, and `infra_lost`. With what follows: of the step that made it fail."""
    exit_code: int | None = None
    signal: str | None = None
    peak_memory_bytes: int | None = None
    waiting_reason: str | None = None
    """Why it has not started, in words. Only of a job that waits."""
    runs_on_labels: list[Any] = []
    outputs: dict[str, Any] | None = None
    needs: list[str] = []
    created_at: datetime | None = None
    steps: list[Step] | None = None
    reused_from_run_id: str | None = None
    """Set: it was not run here, but taken over as it ended in that run."""


class JobList(Body, frozen=True):
    jobs: list[Job]


class LogPage(Body, frozen=True):
    run_id: str
    job_id: str
    step_index: int
    total_lines: int
    lines: list[str]
    """Each with its time in front: `2026-01-02T03:04:05.678Z text`."""
    next_cursor: int | None = None
    complete: bool = False


class LogLines(Body, frozen=True):
    """Server-sent event `log` of `/runs/{id}/stream`."""

    job_id: str
    job_name: str
    step_index: int
    step_name: str
    first_line: int
    """From 0. A line that was sent already, in an earlier stream, has the same number again."""
    lines: list[str]
    attempt: int = 1
    """Of the job: another attempt begins at line 0 again."""


class StepChanged(Body, frozen=True):
    """Server-sent event `step` of `/runs/{id}/stream`. Events `run` and `job` carry `Run` and `Job` (without steps)."""

    job_id: str
    job_name: str
    step: Step


class StreamEnd(Body, frozen=True):
    """Server-sent event `end`: the run has ended and nothing follows."""

    run_id: str
    status: str
    logs_complete: bool
    """False: an agent has not delivered all lines in time."""


class RunCount(Body, frozen=True):
    """Answer of `GET /runs?count=1`."""

    total: int
    since: datetime | None = None
    status: list[str] = []
    workflow_name: str | None = None
    repo: str | None = None


class Artifact(Body, frozen=True):
    name: str
    job_id: str
    job_name: str
    size_bytes: int
    sha256: str
    created_at: datetime
    expired_at: datetime | None = None
    """Since then its bytes are not to be had any more."""


class ArtifactList(Body, frozen=True):
    artifacts: list[Artifact]


class RunStart(Body, frozen=True):
    """Body of `POST /runs`."""

    workflow: str
    ref: str = ""
    """Branch, tag or 40-digit commit; empty = default branch."""
    repo: str = ""
    """Empty = the only repository that the orchestrator knows."""
    inputs: Mapping[str, str | int | float | bool | None] = {}
    """Text, or values of JSON; what the workflow takes is in its `manual(inputs=…)`."""


class RunStarted(Body, frozen=True):
    delivery_id: str
    run_id: str | None = None
    """None: not yet made; ask `GET /event-log/{deliveryId}`."""


class Cache(Body, frozen=True):
    """An entry that jobs can find."""

    id: str
    repository: str
    scope: str
    """Empty = the default branch's, which all runs find; `heads/NAME` or `tags/NAME`: found by runs of that ref and, of
    a branch, by pull requests to it; `pr-N`: found by that pull request."""
    key: str
    size_bytes: int
    created_at: datetime
    used_at: datetime
    """When a job found it last."""


class CacheList(Body, frozen=True):
    caches: list[Cache]


class RerunBody(Body, frozen=True, forbid_unknown_fields=True):
    """Body of `POST /runs/{runId}/rerun`. All of it may be left out."""

    mode: Literal["all", "failed", "job"] = "all"
    """`failed`: the jobs that did not succeed, `job`: one; both with all that need them. The others are reused."""
    job: str = ""
    """With or without the matrix suffix: without, all combinations."""
    commit: Literal["same", "current"] = "same"
    """`current`: the head of the branch or tag now; with the mode `all` only."""
    request_id: str = ""
    """Asked twice with the same one, there is one rerun. The header `Idempotency-Key` says the same."""


class CancelBody(Body, frozen=True):
    force: bool = False


class CancelAnswer(Body, frozen=True):
    status: str
    cancelled_jobs: int


class Delivery(Body, frozen=True):
    """A row of the event log."""

    delivery_id: str
    routing_key: str
    event: str
    action: str | None
    provider: str
    status: str
    matched_count: int
    received_at: datetime
    repo_identifier: str | None = None
    ref: str | None = None
    run_id: str | None = None
    run_ids: list[str] = []
    error_message: str | None = None
    warnings: list[str] = []
    payload_size_bytes: int = 0
    payload_hash: str = ""


class DeliveryAnswer(Body, frozen=True):
    delivery: Delivery


class DeliveryList(Body, frozen=True):
    deliveries: list[Delivery]
    total: int
    limit: int
    offset: int


class Whoami(Body, frozen=True):
    """Whose token a request carries."""

    label: str
    role: str
    expires_at: datetime | None = None
    version: str = ""
    """Of the orchestrator."""


class Registration(Body, frozen=True):
    """A workflow of a repository's default branch."""

    repo_identifier: str
    workflow_name: str
    trigger_types: list[str]
    commit_sha: str | None
    source_file: str | None
    disabled: bool
    updated_at: datetime
    """When the default branch was last pushed to."""
    default_branch: str | None = None


class RegistrationList(Body, frozen=True):
    workflows: list[Registration]
    total: int
    limit: int
    offset: int


class SourceCreate(Body, frozen=True):
    """Body of `POST /sources`. `secret` is write-only."""

    name: str
    provider: str
    """`github` or `generic`"""
    secret: str = ""
    verification_method: str = "hmac_sha256"
    """Generic: `hmac_sha256` or `api_key`."""
    header_name: str = ""
    """Generic: header with the signature (`x-signature-256`) or the key (`authorization`)."""
    event_type_header: str = ""
    event_type_path: str = ""
    max_payload_bytes: int = 0
    """0 = the provider's limit."""
    allowed_events: list[str] = []
    clone_url: str = ""
    """GitHub: template with `{repo}`; empty = the delivery's own `clone_url`."""
    clone_token: str = ""
    """GitHub: token for private repositories. Write-only."""

    def __repr__(self) -> str:
        return f"SourceCreate(name={self.name!r}, provider={self.provider!r})"


class Source(Body, frozen=True):
    id: str
    name: str
    provider: str
    routing_key: str
    enabled: bool
    webhook_url: str
    verification_method: str
    created_at: datetime


class SourceAnswer(Body, frozen=True):
    source: Source


class SourceList(Body, frozen=True):
    sources: list[Source]


class AgentTokenCreate(Body, frozen=True):
    labels: list[str] | None = None
    """Labels that an agent with this token may offer, beside the automatic ones. None = any."""


class AgentTokenAnswer(Body, frozen=True):
    id: str
    token: str

    def __repr__(self) -> str:
        return f"AgentTokenAnswer(id={self.id!r})"


class AgentToken(Body, frozen=True):
    id: str
    token_prefix: str
    """The first characters, to tell tokens apart."""
    labels: list[str] | None
    agent_type: str
    created_at: datetime
    last_seen_at: datetime | None = None
    expires_at: datetime | None = None


class AgentTokenList(Body, frozen=True):
    """Those that are not revoked, newest first."""

    tokens: list[AgentToken]


class Agent(Body, frozen=True):
    agent_id: str
    status: str
    """`idle`, `busy`, `draining`, `full` (takes no job for want of room: `facts.not_taking`), `recovering`, `gone`"""
    labels: list[str]
    slots: int
    running_jobs: list[str]
    version: str
    coordinator: str
    connected_at: datetime | None = None
    facts: dict[str, Any] = {}


class AgentList(Body, frozen=True):
    agents: list[Agent]


class QueueEntry(Body, frozen=True):
    job_id: str
    run_id: str
    workflow_name: str
    job_name: str
    status: str
    """`pending` (waits) or `dispatched` (an agent has it)."""
    attempt: int
    created_at: datetime
    repository: str
    reason: str
    """Why it waits, in words; empty when an agent runs it."""
    expires_at: datetime | None = None
    """None: it waits for ever."""


class QueueList(Body, frozen=True):
    entries: list[QueueEntry]


class ConcurrencySlot(Body, frozen=True):
    """A run, or one job of it, that holds a slot or waits for one."""

    run_id: str
    workflow_name: str
    repository: str
    ref: str
    state: str
    """Status of the job, or of the run."""
    max: int
    """How many it lets hold a slot beside it, itself included."""
    since: datetime
    """It has held the slot, or waited."""
    job_id: str | None = None
    """Absent: the whole run."""
    job_name: str | None = None


class ConcurrencyGroup(Body, frozen=True):
    scope: str
    """`<routing key>::<repository>`, and of an untrusted pull request `…::pr-<number>`."""
    group: str
    holders: list[ConcurrencySlot]
    waiters: list[ConcurrencySlot]
    """In the order in which they get their turn."""


class ConcurrencyList(Body, frozen=True):
    groups: list[ConcurrencyGroup]


class ConcurrencyRelease(Body, frozen=True, forbid_unknown_fields=True):
    group: str
    scope: str | None = None
    """Needed only where the name is in use in several."""
    run_id: str | None = None
    """Of this run and its jobs only; absent = of all holders."""


class ConcurrencyRef(Body, frozen=True):
    run_id: str
    job_id: str | None = None


class ConcurrencyReleased(Body, frozen=True):
    scope: str
    group: str
    released: list[ConcurrencyRef]
    started: list[ConcurrencyRef]
    """Who waited and holds a slot now."""


class QueueAnswer(Body, frozen=True):
    """Of `GET /queue/{id}`: every column of the row but its token, in camelCase, and the reason."""

    entry: dict[str, Any]


class Explanation(Body, frozen=True):
    """Of `GET /queue/{id}/explain`, for any job, waiting or not; `kici runs explain --json` prints the same."""

    job_id: str
    run_id: str
    workflow_name: str
    job_name: str
    status: str
    waits: bool
    reason: str


class QueuePause(Body, frozen=True):
    scope: str
    """`all`, `repository` or `label`"""
    value: str
    reason: str
    created_by: str
    created_at: datetime


class QueuePauseList(Body, frozen=True):
    pauses: list[QueuePause]


class QueuePauseBody(Body, frozen=True):
    """Body of `POST /queue/pause` and `/queue/resume`, which does not look at the reason."""

    scope: str = "all"
    value: str = ""
    reason: str = ""


class RepositoryCap(Body, frozen=True):
    repository: str
    max_running: int
    created_by: str
    created_at: datetime


class RepositoryCapList(Body, frozen=True):
    caps: list[RepositoryCap]
    default_cap: int | None = None


class RepositoryCapBody(Body, frozen=True):
    """Body of `POST /queue/caps`."""

    repository: str
    max_running: int | None = None
    """None: the default applies again."""


class QueueLane(Body, frozen=True):
    """What waits for the same labels in the same repository."""

    repository: str
    labels: list[str]
    pending: int
    more: bool
    """There are more than were counted."""
    oldest_seconds: int
    has_agent: bool
    """Some connected agent can serve it."""
    paused: bool


class QueueOfRepository(Body, frozen=True):
    repository: str
    pending: int
    more: bool
    running: int
    """Sent to agents, accepted or not."""
    cap: int | None
    oldest_seconds: int


class QueueOfLabelSet(Body, frozen=True):
    labels: list[str]
    pending: int
    more: bool
    oldest_seconds: int
    has_agent: bool


class QueueStats(Body, frozen=True):
    pending: int
    pending_is_estimate: bool
    delayed: int
    """Of the pending ones, those whose next attempt is not due yet."""
    dispatched: int
    """Sent to an agent that has not accepted them yet."""
    running: int
    oldest_seconds: int
    lanes: list[QueueLane]
    lanes_left_out: bool
    repositories: list[QueueOfRepository]
    label_sets: list[QueueOfLabelSet]
    pauses: list[QueuePause]
    caps: list[RepositoryCap]
    default_cap: int | None = None


class Health(Body, frozen=True):
    status: str
    timestamp: datetime
    uptime: float
    version: str
    instance_id: str


class Readiness(Body, frozen=True):
    status: str
    checks: dict[str, bool]

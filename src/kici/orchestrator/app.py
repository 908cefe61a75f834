"""The composition root of a coordinator: reads from top to bottom as the list of what runs."""

from __future__ import annotations

from contextlib import AsyncExitStack
from datetime import timedelta
from functools import partial

import structlog

from kici import __version__
from kici.forges.git.fetch import Repositories
from kici.orchestrator import http, local_repository
from kici.orchestrator.agents import socket
from kici.orchestrator.agents.attention import Attention
from kici.orchestrator.agents.contract import Settings as AgentSettings
from kici.orchestrator.agents.conversation import Parts as ConversationParts
from kici.orchestrator.agents.hello import Door
from kici.orchestrator.agents.revocation import WatchRevocations
from kici.orchestrator.agents.roster import Roster
from kici.orchestrator.agents.silence import WatchSilence
from kici.orchestrator.agents.socket import AgentSockets
from kici.orchestrator.announcement import Announcement
from kici.orchestrator.api import (
    agent_check,
    agent_tokens,
    agents,
    artifacts,
    caches,
    concurrency,
    downloads,
    emit,
    event_log,
    git,
    job_context,
    logs,
    queue,
    queue_rules,
    rerun,
    run_start,
    runs,
    stream,
    uploads,
    workflows,
)
from kici.orchestrator.api import (
    secret_outputs as secret_output_routes,
)
from kici.orchestrator.api import (
    sources as source_routes,
)
from kici.orchestrator.bridges import AgentTokens, CloneLogins
from kici.orchestrator.caches import (
    artifact_limits,
    end_uploads,
    entries,
    expire_artifacts,
    sweep_caches,
    sweep_uploads,
)
from kici.orchestrator.caches.artifacts import Artifacts
from kici.orchestrator.caches.end_uploads import EndUploads
from kici.orchestrator.caches.entries import Caches
from kici.orchestrator.caches.expire_artifacts import ExpireArtifacts
from kici.orchestrator.caches.parts import Parts as StoredParts
from kici.orchestrator.caches.sweep_caches import SweepCaches
from kici.orchestrator.caches.sweep_uploads import SweepUploads
from kici.orchestrator.caches.uploads import Uploads
from kici.orchestrator.cluster.coordinator_lease import CoordinatorLease
from kici.orchestrator.cluster.leader import Leader
from kici.orchestrator.diagnostics import health, metrics
from kici.orchestrator.dispatch import dispatcher
from kici.orchestrator.dispatch.dispatcher import Dispatcher
from kici.orchestrator.dispatch.explain import explain
from kici.orchestrator.dispatch.orders import Place
from kici.orchestrator.dispatch.queue_stats import MeasureQueue
from kici.orchestrator.identity.access import Access
from kici.orchestrator.identity.bootstrap import bootstrap
from kici.orchestrator.intake import drain_spool, endpoint
from kici.orchestrator.intake.accept import Intake
from kici.orchestrator.intake.drain_spool import DrainSpool
from kici.orchestrator.intake.endpoint import Endpoint
from kici.orchestrator.intake.inflight import InflightBytes
from kici.orchestrator.intake.sources import Sources
from kici.orchestrator.lifecycle.cancel import cancel_run
from kici.orchestrator.lifecycle.group_repair import release_by_hand
from kici.orchestrator.lifecycle.limits import Limits
from kici.orchestrator.lifecycle.new_run import settle_new_runs
from kici.orchestrator.lifecycle.writer import StatusWriter
from kici.orchestrator.local_repository import LocalRepository
from kici.orchestrator.logs import compact, drop_partitions
from kici.orchestrator.logs.compact import CompactLogs
from kici.orchestrator.logs.drop_partitions import DropLogPartitions
from kici.orchestrator.logs.reader import LogReader
from kici.orchestrator.logs.tail import RunFeed
from kici.orchestrator.logs.writer import LogWriter
from kici.orchestrator.maintenance import end_stale_waits, forget_gone, repair_concurrency, sweeper
from kici.orchestrator.maintenance.cancel_overdue_runs import CancelOverdueRuns
from kici.orchestrator.maintenance.end_stale_waits import EndStaleWaits
from kici.orchestrator.maintenance.forget_gone import ForgetGone
from kici.orchestrator.maintenance.lose_sessions import LoseSessions
from kici.orchestrator.maintenance.repair_concurrency import RepairConcurrency
from kici.orchestrator.maintenance.requeue_unacknowledged import RequeueUnacknowledged
from kici.orchestrator.maintenance.settle_overdue import SettleOverdue
from kici.orchestrator.maintenance.stop_overdue_jobs import StopOverdueJobs
from kici.orchestrator.objects.open_objects import open_objects
from kici.orchestrator.pipeline import payloads
from kici.orchestrator.pipeline import service as pipeline
from kici.orchestrator.pipeline.lock_files import LockFiles
from kici.orchestrator.pipeline.parts import Parts
from kici.orchestrator.pipeline.payloads import MovePayloads
from kici.orchestrator.pipeline.service import Pipeline
from kici.orchestrator.pipeline.unservable import Labels
from kici.orchestrator.secrets.job_outputs import SecretOutputs
from kici.orchestrator.secrets.master_key import load_key_ring
from kici.orchestrator.secrets.scoped import ScopedSecrets
from kici.orchestrator.services import Service, Stage, run_stages
from kici.orchestrator.settings import Settings
from kici.orchestrator.store import database, migrate, notify, sessions
from kici.orchestrator.store.embedded import EmbeddedPostgres
from kici.orchestrator.store.known_labels import KnownLabels
from kici.orchestrator.store.lease import Lease
from kici.orchestrator.store.notify import Listener, Notifier

log = structlog.get_logger(__name__)


async def serve(settings: Settings) -> None:
    """Run a coordinator until cancelled. Raises `KiciError` where it cannot start."""
    async with AsyncExitStack() as ends:
        # ── the address comes first: where it is taken, nothing else has to be undone
        listening_socket = ends.enter_context(http.listen(settings.host, settings.port, settings.listen_fd))
        public_url = settings.public_url or http.address(listening_socket)
        key_ring = load_key_ring(settings)

        # ── the database
        embedded = None if settings.database_url else EmbeddedPostgres(settings.data_dir / "postgres")
        if embedded is not None:
            ends.push_async_callback(embedded.stop)
            await embedded.start()
        url = settings.database_url if embedded is None else embedded.url
        direct_url = settings.database_listen_url or url
        await database.reachable(direct_url)
        await migrate.ensure(direct_url, auto=settings.auto_migrate)
        connect = partial(database.create_pool, url, pooler=direct_url != url, idle_s=settings.coordinator_lease_s)
        pool = await connect(settings.database_pool_size)
        # Of its own each: a log table that is slow or locked holds up whoever writes and reads logs, and nobody else;
        # and leases are renewed however busy the others are, for without one nothing may be acknowledged.
        log_writing = await connect(1)
        log_reading = await connect(settings.database_log_pool_size)
        renewing = await connect(2)
        for each in (pool, log_writing, log_reading, renewing):
            ends.callback(each.terminate)

        # ── what the parts share
        poll = timedelta(seconds=settings.poll_s)
        ttl = timedelta(seconds=settings.coordinator_lease_s)
        instance = settings.instance_id
        limits = Limits.of(settings)
        notifier = Notifier(pool)
        listener = Listener(direct_url)
        objects = open_objects(settings)
        access = Access(pool)
        secrets = ScopedSecrets(key_ring)
        secret_outputs = SecretOutputs(key_ring)
        sources = Sources(pool, secrets)
        lease = CoordinatorLease(renewing, instance, ttl, version=__version__, url=public_url)
        async with pool.acquire() as db, db.transaction():
            await bootstrap(db, settings)
        await sources.load()
        await lease.run_once()
        ends.push_async_callback(lease.leave)

        # ── the repository that `kici up` offers
        offered = _offered(settings)
        if offered is not None:
            await local_repository.offer(offered, pool, secrets, sources, public_url=public_url)
        repositories = {offered.identifier: offered.directory} if offered is not None else {}

        # ── webhooks in
        intake = Intake(pool, notifier)
        webhooks = Endpoint(
            sources,
            intake,
            InflightBytes(settings.webhook_inflight_bytes),
            spool_above=settings.webhook_spool_bytes,
            spool_directory=settings.data_dir,
        )
        listener.subscribe(notify.SOURCES, sources.changed)
        missed_pushes: list[Service] = (
            [DrainSpool(intake, sources, drain_spool.Settings(offered.name, offered.spool))] if offered else []
        )

        # ── what the queue allows, and why something waits in it
        default_cap = settings.queue_repository_max_running or None
        known = KnownLabels()
        why = partial(explain, default_cap=default_cap, known=known)

        # ── events become runs
        git_repositories = Repositories(settings.data_dir / "mirrors", repositories)
        lock_files = LockFiles(git_repositories, limit=settings.lockfile_cache_max)
        events = Pipeline(
            instance,
            pool,
            Parts(
                pool,
                sources,
                git_repositories,
                lock_files,
                Labels(known, fail=settings.queue_unservable == "fail"),
            ),
            partial(settle_new_runs, limits=limits),
            notifier,
            pipeline.Settings(
                attempts=settings.event_attempts,
                per_minute=settings.event_router_rate_limit_per_workflow_per_minute,
                lease=ttl,
                poll=poll,
            ),
        )
        listener.subscribe(notify.EVENTS, events.wake)

        # ── jobs go to agents, and what they tell comes back
        place = Place(public_url)
        roster = Roster()
        log_writer = LogWriter(log_writing, notifier)
        statuses = StatusWriter(pool, notifier, limits, hold=lambda db: sessions.hold_lease(db, instance))
        agent_settings = AgentSettings(
            heartbeat_s=settings.heartbeat_s,
            silent_s=settings.silent_s,
            recovery_s=settings.recovery_s,
            ack_timeout_s=limits.ack_timeout_s,
        )
        sockets = AgentSockets(
            Door(pool, AgentTokens(access), roster, lease, notifier, limits, agent_settings, instance=instance),
            ConversationParts(pool, roster, lease, statuses, log_writer, notifier, limits, instance=instance),
            agent_settings,
        )
        dispatching = Dispatcher(
            pool,
            roster,
            CloneLogins(sources),
            listener,
            notifier,
            limits,
            place,
            dispatcher.Settings(interval=poll, default_cap=default_cap),
            instance=instance,
        )
        attention = Attention(pool, roster, listener, interval=poll)
        revocation = WatchRevocations(pool, roster, listener, notifier, limits, interval=poll, instance=instance)
        silence = WatchSilence(pool, roster, lease, notifier, limits, agent_settings, instance=instance)

        # ── logs, artifacts, live views
        feed = RunFeed(listener)
        stored = StoredParts(objects, direct=settings.storage_direct)
        artifact_store = Artifacts(
            pool,
            stored,
            artifact_limits.Limits(
                settings.artifact_max_bytes, settings.artifacts_per_run, settings.artifact_quota_bytes
            ),
        )
        artifact_ttl = timedelta(milliseconds=settings.artifact_ttl_ms) or None
        cache_ttl = timedelta(milliseconds=settings.user_cache_ttl_ms)
        cache_store = Caches(pool, stored, entries.Limits(settings.user_cache_quota_bytes, cache_ttl))
        compactor = CompactLogs(log_reading, objects, listener, notifier, compact.Settings(interval=poll))
        streams = stream.RunStream(log_reading, objects, feed, why, stream.Settings(poll_s=settings.poll_s))

        # ── what one coordinator of the cluster does
        def led(held: Lease) -> list[Service]:
            retention = timedelta(hours=settings.log_retention_hours)
            parts = (pool, held, notifier, limits)
            sweeping = sweeper.Settings(lease=ttl)
            return [
                EndStaleWaits(*parts, end_stale_waits.SETTINGS, instance=instance),
                LoseSessions(*parts, sweeping, instance=instance),
                RequeueUnacknowledged(*parts, sweeping, instance=instance),
                SettleOverdue(*parts, sweeping, instance=instance),
                CancelOverdueRuns(*parts, sweeping, instance=instance),
                StopOverdueJobs(*parts, sweeping, instance=instance),
                RepairConcurrency(*parts, repair_concurrency.SETTINGS, instance=instance),
                ForgetGone(pool, held, forget_gone.Settings()),
                SweepCaches(pool, held, stored, sweep_caches.Settings(ttl=cache_ttl)),
                EndUploads(pool, held, stored, end_uploads.Settings()),
                ExpireArtifacts(pool, held, stored, expire_artifacts.Settings(ttl=artifact_ttl)),
                DropLogPartitions(log_reading, held, drop_partitions.Settings(retention=retention)),
            ]

        # ── what is served
        cancel = partial(cancel_run, limits=limits)
        routes = [
            *health.routes(pool, lease.valid, instance=instance, version=__version__),
            *metrics.routes(),
            *socket.routes(sockets),
            *git.routes(access, repositories),
            *job_context.routes(pool, access, place, secret_outputs),
            *secret_output_routes.routes(pool, access, secret_outputs),
            *artifacts.routes(pool, access, artifact_store),
            *caches.routes(pool, access, cache_store),
            *uploads.routes(access, Uploads(pool, stored, [artifact_store, cache_store])),
            *downloads.routes(access, stored, artifact_store, cache_store),
            *emit.routes(pool, access, notifier),
            *runs.routes(pool, access, notifier, cancel_run=cancel, explain=why),
            *run_start.routes(access, pool, notifier),
            *rerun.routes(access, pool, notifier),
            *logs.routes(access, LogReader(log_reading, objects)),
            *stream.routes(access, streams),
            *concurrency.routes(pool, access, notifier, release=partial(release_by_hand, limits=limits)),
            *queue.routes(pool, access, explain=why),
            *queue_rules.routes(pool, access, notifier, default_cap=default_cap),
            *agents.routes(pool, access),
            *agent_check.routes(pool, access, objects),
            *workflows.routes(pool, access),
            *event_log.routes(pool, access),
            *source_routes.routes(access, pool, secrets, sources, notifier, public_url=lambda: public_url),
            *agent_tokens.routes(access, pool, notifier),
        ]
        application = http.application(routes, base_path=settings.base_path, raw={endpoint.PATH: webhooks})
        server = http.HttpServer(application, listening_socket)

        # ── what runs, from the ground up; it stops in the opposite order
        await run_stages(
            [
                Stage("database", [embedded] if embedded is not None else []),
                Stage("coordination", [notifier, listener, lease]),
                Stage("writers", [intake, statuses, log_writer]),
                Stage(
                    "work",
                    [
                        sources,
                        events,
                        *missed_pushes,
                        dispatching,
                        MeasureQueue(pool),
                        attention,
                        revocation,
                        silence,
                        compactor,
                        MovePayloads(pool, objects, payloads.Settings()),
                        SweepUploads(objects, sweep_uploads.Settings()),
                        Leader(renewing, "maintenance", instance, led, ttl=ttl),
                    ],
                ),
                Stage("front", [server, feed, sockets, Announcement(server.listening, settings.data_dir, public_url)]),
            ]
        )


def _offered(settings: Settings) -> LocalRepository | None:
    if not settings.local_repository:
        return None
    name = settings.local_repository
    return LocalRepository(name, settings.data_dir / "repositories" / f"{name}.git")

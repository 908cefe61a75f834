"""Two real coordinators on one database, a forge whose deliveries go to either, and agents behind cables."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import json
import secrets
import shutil
import signal
import sys
import tempfile
import uuid
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import asyncpg
from asyncpg import Connection, Record

from tests.support.cut import Cable
from tests.support.forge import Forge
from tests.support.git import bare
from tests.support.processes import Coordinator, Process, environment
from tests.support.serving import serving
from tests.support.stack import Stack

REPO = "team/app"
SECRET = b"hush"
SHORT = {
    "KICI_HEARTBEAT_S": "0.3",
    "KICI_SILENT_S": "1",
    "KICI_RECOVERY_S": "3",
    "KICI_REPORT_WINDOW_S": "60",
    "KICI_COORDINATOR_LEASE_S": "1.5",
    "KICI_DISPATCH_ACK_TIMEOUT_MS": "3000",
    "KICI_POLL_S": "0.5",
}


class Replicas(Stack):
    """What a test asks goes to the first coordinator that lives and is not frozen."""

    def __init__(self, base: Path, database_url: str, forge_url: str, env: dict[str, str], count: int) -> None:
        super().__init__(base, {})
        self._database_url = database_url
        self.remote = str(bare(base / "forge" / f"{REPO}.git"))
        self._clone_url = f"{forge_url}/{REPO}.git"
        admin = secrets.token_hex(32)
        settings = {
            **environment(),
            "KICI_DATABASE_URL": database_url,
            "KICI_SECRET_KEY": secrets.token_hex(32),
            "KICI_BOOTSTRAP_ADMIN_TOKEN": admin,
            "KICI_STORAGE_FS_PATH": str(base / "objects"),
            "KICI_LOG_FORMAT": "plain",
            "KICI_DIE_WITH_PARENT": "true",
            **SHORT,
            **env,
        }
        self.coordinators = [Coordinator(f"coordinator-{letter}", base, settings) for letter in "abc"[:count]]
        self.http.headers["Authorization"] = f"Bearer {admin}"
        self.agents: list[Process] = []
        self.token = ""
        self.token_id = ""

    async def start(self) -> None:
        (self.base / "home").mkdir()
        (self.base / "gitconfig").write_text("[user]\n name = Test\n email = t@example.com\n[safe]\n directory = *\n")
        for one in self.coordinators:
            await one.start()
        for one in self.coordinators:
            await one.ready(self.http)
        self.use(self.coordinators[0])
        made = await self.post("/api/v1/agent-tokens", {})
        self.token, self.token_id = made["token"], made["id"]
        await self.post("/api/v1/admin/sources", {"name": "hub", "provider": "github", "secret": SECRET.decode()})

    async def stop(self) -> None:
        """As an operator does; what does not end is killed, and a failure."""
        late = []
        for one in (*self.agents, *self.coordinators):
            if not one.alive:
                continue
            one.thaw()
            try:
                async with asyncio.timeout(30):
                    await one.kill(signal.SIGTERM)
            except TimeoutError:
                await one.kill()
                late.append(one.name)
        for one in self.coordinators:
            one.close()
        await self.http.aclose()
        assert not late, f"did not stop within 30 s: {late}\n{self.logs()}"

    def use(self, coordinator: Coordinator) -> None:
        """Requests of the test go there from now on."""
        self.url = coordinator.url

    async def post(self, path: str, body: Any) -> Any:
        answer = await self.http.post(f"{self.url}{path}", json=body)
        assert answer.is_success, (path, answer.status_code, answer.text)
        return answer.json()

    async def push(self, root: Path, ref: str = "main") -> str:
        """Push HEAD and deliver that to the coordinator in use; the commit's sha."""
        sha = await super().push(root, ref)
        await self.deliver(sha, ref)
        return sha

    async def deliver(self, sha: str, ref: str = "main") -> None:
        body = json.dumps(
            {
                "ref": f"refs/heads/{ref}",
                "before": "0" * 40,
                "after": sha,
                "created": True,
                "repository": {"full_name": REPO, "clone_url": self._clone_url, "default_branch": "main"},
                "head_commit": {"id": sha, "message": "a push"},
            }
        ).encode()
        answer = await self.http.post(
            f"{self.url}/webhook/default/github/hub",
            content=body,
            headers={
                "content-type": "application/json",
                "x-github-event": "push",
                "x-github-delivery": str(uuid.uuid4()),
                "x-hub-signature-256": f"sha256={hmac.new(SECRET, body, hashlib.sha256).hexdigest()}",
            },
        )
        assert answer.status_code == 202, answer.text

    async def agent(self, name: str, port: int, *, slots: int = 1, labels: str = "") -> Process:
        """A real one, which dials the port (of a coordinator, or a cable to one)."""
        one = Process(
            name,
            (sys.executable, "-m", "kici.agent.main"),
            {
                **self.env,
                "KICI_ORCHESTRATOR_URL": f"ws://127.0.0.1:{port}/ws",
                "KICI_AGENT_TOKEN": self.token,
                "KICI_AGENT_ID": name,
                "KICI_AGENT_SLOTS": str(slots),
                "KICI_LABELS": labels,
                "KICI_WORK_DIR": str(self.base / f"{name}-work"),
                "KICI_SANDBOX": "false",
                "KICI_DIE_WITH_PARENT": "1",
                "KICI_LOG_FORMAT": "plain",
            },
            self.base / f"{name}.log",
        )
        self.agents.append(one)
        await one.start()
        return one

    @contextlib.asynccontextmanager
    async def cable(self, coordinator: Coordinator) -> AsyncIterator[Cable]:
        async with Cable(coordinator.port) as cable:
            yield cable

    @contextlib.asynccontextmanager
    async def database(self) -> AsyncIterator[Connection[Record]]:
        db = await asyncpg.connect(self._database_url, timeout=10)
        try:
            yield db
        finally:
            db.terminate()

    def database_url(self) -> str:
        return self._database_url

    def said(self, coordinator: Process) -> str:
        return coordinator.log.read_text(errors="replace")

    def logs(self) -> str:
        return "\n".join(f"── {one.name}\n{self.said(one)[-5000:]}" for one in (*self.coordinators, *self.agents))

    async def all_ended(self, shas: Sequence[str], deadline: float = 60) -> list[dict[str, Any]]:
        return [await self.ended((await self.run_of(sha, deadline))["runId"], deadline) for sha in shas]


@contextlib.asynccontextmanager
async def running(database_url: str, *, count: int = 2, **env: str) -> AsyncIterator[Replicas]:
    base = Path(tempfile.mkdtemp(prefix="kici-replicas-"))
    base.chmod(0o755)
    try:
        async with serving(Forge(base / "forge")) as forge_url:
            replicas = Replicas(base, database_url, forge_url, env, count)
            try:
                await replicas.start()
                yield replicas
            finally:
                await replicas.stop()
    finally:
        shutil.rmtree(base, ignore_errors=True)

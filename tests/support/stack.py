"""A whole kici for system tests: `kici up` as a user starts it, in directories of its own, with ways to hurt it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import httpx

from kici.runner.processes import descendants
from tests.support import prepared
from tests.support.postgres import memory, reachable_folder

T = TypeVar("T")
TERMINAL = {"success", "failed", "cancelled"}


class Stack:
    """One running `kici up`. All waits have deadlines; `stop` leaves nothing behind."""

    def __init__(self, base: Path, env: Mapping[str, str], options: tuple[str, ...] = ()) -> None:
        self.base = base
        self.data = base / "data"
        self.env = {
            **{name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"},
            "KICI_CONFIG_DIR": str(base / "config"),
            "HOME": str(base / "home"),
            "GIT_CONFIG_GLOBAL": str(base / "gitconfig"),
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path.endswith("src")),
            **env,
        }
        self.options = options
        self.process: asyncio.subprocess.Process | None = None
        self.url = ""
        self.remote = ""
        self.http = httpx.AsyncClient(timeout=10)

    async def start(self) -> None:
        (self.base / "home").mkdir(exist_ok=True)
        (self.base / "gitconfig").write_text(
            "[user]\n name = Test\n email = test@example.com\n[init]\n defaultBranch = main\n[safe]\n directory = *\n"
        )
        with (self.base / "up.err").open("ab") as errors:
            self.process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "kici.cli.main", "up", "--json", "--port", "0", "--data-dir", str(self.data)),
                *self.options,
                env=self.env,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
            )
        assert self.process.stdout
        async with asyncio.timeout(60):
            line = await self.process.stdout.readline()
        if not line:
            raise AssertionError(f"kici up did not start: {(self.base / 'up.err').read_text()}\n{self.logs()}")
        said = json.loads(line)
        self.url, self.remote = said["url"], said["remote"]
        token = json.loads(Path(said["config"]).read_text())["token"]
        self.http.headers["Authorization"] = f"Bearer {token}"

    async def stop(self) -> None:
        await self.http.aclose()
        if self.process and self.process.returncode is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                async with asyncio.timeout(60):
                    await self.process.wait()
            except TimeoutError:
                self.process.kill()
                raise AssertionError(f"kici up did not stop within 60 s\n{self.logs()}") from None

    # ── what a user does ──────────────────────────────────────────────────────────────────────────────────────────

    async def kici(self, *argv: str, cwd: Path | None = None, check: bool = True) -> str:
        """A `kici` command's standard output (and error output, if it may fail)."""
        return await self.run(sys.executable, "-m", "kici.cli.main", *argv, cwd=cwd, check=check)

    async def run_admin(self, *argv: str) -> str:
        return await self.run(sys.executable, "-m", "kici.admin.main", *argv)

    async def run(self, *argv: str, cwd: Path | None = None, check: bool = True) -> str:
        process = await asyncio.create_subprocess_exec(
            *argv, cwd=cwd, env=self.env, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        async with asyncio.timeout(60):
            out, err = await process.communicate()
        if check and process.returncode:
            raise AssertionError(f"{argv} ended with {process.returncode}:\n{out.decode()}{err.decode()}")
        return out.decode() if check else out.decode() + err.decode()

    async def repository(
        self, workflow: str, *, name: str = "repo", files: Mapping[str, str] | None = None, compiled: bool = True
    ) -> Path:
        """A git repository with that workflow, committed, and compiled unless told otherwise; `kici` is its remote."""
        root = self.base / name
        (root / ".kici" / "workflows").mkdir(parents=True)
        (root / ".kici" / "workflows" / "ci.py").write_text(workflow)
        for path, text in (files or {}).items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text)
        await self.run("git", "init", "-q", cwd=root)
        await self.run("git", "remote", "add", "kici", self.remote, cwd=root)
        if compiled:
            await self.kici("compile", cwd=root)
        await self.commit(root, "first")
        return root

    async def commit(self, root: Path, message: str) -> str:
        await self.run("git", "add", "-A", cwd=root)
        await self.run("git", "commit", "-q", "--allow-empty", "-m", message, cwd=root)
        return (await self.run("git", "rev-parse", "HEAD", cwd=root)).strip()

    async def push(self, root: Path, ref: str = "main") -> str:
        """Push HEAD; the commit's sha."""
        await self.run("git", "push", "-q", "kici", f"HEAD:{ref}", cwd=root)
        return (await self.run("git", "rev-parse", "HEAD", cwd=root)).strip()

    # ── what an operator sees ─────────────────────────────────────────────────────────────────────────────────────

    async def get(self, path: str, **params: Any) -> Any:
        answer = await self.http.get(f"{self.url}/api/v1/admin{path}", params=params)
        assert answer.status_code == 200, (path, answer.status_code, answer.text)
        return answer.json()

    async def runs(self, sha: str | None = None) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = (await self.get("/runs", limit=100))["runs"]
        return [run for run in found if sha is None or run["sha"] == sha]

    async def jobs(self, run_id: str) -> dict[str, dict[str, Any]]:
        found = (await self.get(f"/runs/{run_id}/jobs", includeSteps="true"))["jobs"]
        return {job["jobName"]: job for job in found}

    async def run_of(self, sha: str, deadline: float = 30) -> dict[str, Any]:
        """The run of a commit, once it is there."""
        return await self.until(lambda: self._first(sha), f"a run of {sha}", deadline)

    async def ended(self, run_id: str, deadline: float = 60) -> dict[str, Any]:
        """The run, once it has ended."""

        async def look() -> dict[str, Any] | None:
            run: dict[str, Any] = (await self.get(f"/runs/{run_id}"))["run"]
            return run if run["status"] in TERMINAL else None

        return await self.until(look, f"the end of run {run_id}", deadline)

    async def job(self, run_id: str, name: str, status: str, deadline: float = 30) -> dict[str, Any]:
        """The job, once it has that status."""

        async def look() -> dict[str, Any] | None:
            job = (await self.jobs(run_id)).get(name)
            return job if job and job["status"] == status else None

        return await self.until(look, f"job {name} as {status}", deadline)

    async def log(self, run_id: str, job_id: str, step: int) -> list[str]:
        """The step's log without times."""
        lines: list[str] = []
        cursor: int | None = 0
        while cursor is not None:
            page = await self.get(f"/runs/{run_id}/jobs/{job_id}/steps/{step}/logs", cursor=cursor, limit=2000)
            lines += [line.partition(" ")[2] for line in page["lines"]]
            cursor = page["nextCursor"] if page["lines"] else None
        return lines

    async def until(self, look: Callable[[], Awaitable[T | None]], what: str, deadline: float) -> T:
        """Ask until there is an answer; connection errors count as none (it may be starting again)."""
        try:
            async with asyncio.timeout(deadline):
                while True:
                    with contextlib.suppress(httpx.TransportError, AssertionError):
                        found = await look()
                        if found is not None:
                            return found
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise AssertionError(f"waited {deadline} s for {what}\n{self.logs()}") from None

    async def _first(self, sha: str) -> dict[str, Any] | None:
        found = await self.runs(sha)
        return found[0] if found else None

    def logs(self) -> str:
        parts = sorted((self.data / "logs").glob("*.log")) if (self.data / "logs").exists() else []
        return "\n".join(f"── {part.name}\n{part.read_text(errors='replace')[-6000:]}" for part in parts)

    def database_url(self) -> str:
        """Of the embedded server, as its superuser."""
        postgres = self.data / "postgres"
        password = (postgres / "password").read_text()
        return f"postgresql://kici:{password}@/kici?host={quote(str(postgres / 'run'), safe='')}"

    # ── ways to hurt it ───────────────────────────────────────────────────────────────────────────────────────────

    def pids(self, part: str) -> list[int]:
        """Our processes whose command line has `part`: `kici.agent.main`, `kici.runner`, `postgres`."""
        assert self.process
        ours = descendants(self.process.pid)
        everywhere = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
        orphans = (pid for pid in everywhere if str(self.data) in command_line(pid) and pid not in ours)
        return [pid for pid in (*ours, *orphans) if part in command_line(pid)]

    def kill(self, part: str, number: signal.Signals = signal.SIGKILL) -> None:
        found = self.pids(part)
        assert found, f"no process with {part} in its command line"
        for pid in found[:1]:
            os.kill(pid, number)


def running(*options: str, **env: str) -> contextlib.AbstractAsyncContextManager[Stack]:
    """A started stack in a directory that other users may pass through, as the database's own user must. The database
    is in memory where there is room."""
    return _running(memory(), options, env)


def running_on_disk(*options: str, **env: str) -> contextlib.AbstractAsyncContextManager[Stack]:
    """For what is measured: with the durability that users have."""
    return _running(None, options, env)


@contextlib.asynccontextmanager
async def _running(databases: Path | None, options: tuple[str, ...], env: Mapping[str, str]) -> AsyncIterator[Stack]:
    base = Path(tempfile.mkdtemp(prefix="kici-system-"))
    base.chmod(0o755)
    stack = Stack(base, env, options)
    with contextlib.ExitStack() as left:
        left.callback(shutil.rmtree, base, ignore_errors=True)
        if "KICI_DATABASE_URL" not in env:
            postgres = left.enter_context(reachable_folder(databases))
            await prepared.copy_to(postgres)
            stack.data.mkdir()
            (stack.data / "postgres").symlink_to(postgres)
        try:
            await stack.start()
            yield stack
        finally:
            await stack.stop()


def command_line(pid: int) -> str:
    return _read(Path(f"/proc/{pid}/cmdline")).replace("\0", " ")


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""

from __future__ import annotations

import asyncio
import base64
import gzip
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import httpx
import pytest
from asyncpg import Pool, Record

from kici.forges.git import serve
from kici.orchestrator.api.git import routes
from kici.orchestrator.http import application
from kici.orchestrator.identity.access import Access
from tests.support.git import WorkTree, bare, git
from tests.support.serving import serving

Make = Callable[[str], Awaitable[str]]


@pytest.fixture
def work(tmp_path: Path) -> WorkTree:
    tree = WorkTree(tmp_path / "work", bare(tmp_path / "app.git"))
    tree.commit({"a.txt": "one", "big.bin": b"\0\1\2\3" * 200_000})
    tree.push()
    return tree


@pytest.fixture
async def job(job_token: Make) -> str:
    return await job_token("team/app")


@pytest.fixture
async def base(pool: Pool[Record], work: WorkTree, tmp_path: Path) -> AsyncIterator[str]:
    repositories = {"team/app": tmp_path / "app.git", "team/other": tmp_path / "missing.git"}
    async with serving(application(routes(Access(pool), repositories))) as url:
        yield url


def header(token: str, user: str = "x") -> dict[str, str]:
    """What an agent's git is given."""
    pair = base64.b64encode(f"{user}:{token}".encode()).decode()
    return {
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": "http.extraHeader",
        "GIT_CONFIG_VALUE_0": f"Authorization: Basic {pair}",
    }


async def run(*args: str, env: dict[str, str] | None = None, check: bool = True) -> str:
    return await asyncio.to_thread(git, *args, env=env, check=check)


@pytest.mark.parametrize("version", ["0", "2"])
@pytest.mark.parametrize("kind", ["job", "developer"])
async def test_a_token_clones_the_repository(
    base: str, work: WorkTree, tmp_path: Path, version: str, kind: str, job: str, admin_token: Make
) -> None:
    token = job if kind == "job" else await admin_token(kind)
    await run(
        "-c",
        f"protocol.version={version}",
        "clone",
        "-q",
        f"{base}/git/team/app",
        str(tmp_path / "c"),
        env=header(token),
    )
    assert git("rev-parse", "HEAD", cwd=tmp_path / "c") == work.git("rev-parse", "HEAD")
    assert (tmp_path / "c" / "big.bin").stat().st_size == 800_000


async def test_git_sends_a_password_from_the_url_after_the_challenge(base: str, job: str, tmp_path: Path) -> None:
    url = base.replace("http://", f"http://anybody:{job}@")
    await run("clone", "-q", f"{url}/git/team/app.git", str(tmp_path / "c"))
    assert (tmp_path / "c" / "a.txt").read_text() == "one"


async def test_a_commit_that_no_branch_has_any_more_is_fetched_by_its_id(
    base: str, work: WorkTree, tmp_path: Path, job: str
) -> None:
    gone = work.commit({"a.txt": "two"})
    work.push()
    work.git("reset", "-q", "--hard", "HEAD~1")
    work.push()
    git("init", "-q", str(tmp_path / "c"))
    await run(*("-C", str(tmp_path / "c"), "fetch", "-q", "--depth=1", f"{base}/git/team/app", gone), env=header(job))
    assert git("show", f"{gone}:a.txt", cwd=tmp_path / "c") == "two"


async def test_a_fetch_with_many_haves_is_sent_packed_and_understood(
    base: str, work: WorkTree, tmp_path: Path, job: str
) -> None:
    await run("clone", "-q", f"{base}/git/team/app", str(tmp_path / "c"), env=header(job))
    clone = WorkTree(tmp_path / "c")
    for number in range(60):  # more than 1 KiB of "have" lines, so git packs the request
        clone.commit({"local.txt": str(number)})
    tip = work.commit({"a.txt": "three"})
    work.push()
    await run("-C", str(clone.path), "fetch", "-q", "origin", env=header(job))
    assert clone.git("rev-parse", "origin/main") == tip


async def test_the_token_of_a_job_ends_with_its_attempt(pool: Pool[Record], base: str, job: str) -> None:
    url = f"{base}/git/team/app/info/refs?service=git-upload-pack"
    async with httpx.AsyncClient(auth=("git", job)) as client:
        assert (await client.get(url)).status_code == 200
        await pool.execute("delete from dispatch_queue")
        assert (await client.get(url)).status_code == 401


async def test_an_auditor_does_not_read_code(base: str, admin_token: Make) -> None:
    async with httpx.AsyncClient(auth=("git", await admin_token("auditor"))) as client:
        answer = await client.get(f"{base}/git/team/app/info/refs?service=git-upload-pack")
    assert answer.status_code == 403


@pytest.mark.parametrize("token", ["", "kjt_" + "3" * 64, "nonsense"])
async def test_without_a_valid_token_there_is_a_challenge(base: str, token: str) -> None:
    async with httpx.AsyncClient() as client:
        answer = await client.get(f"{base}/git/team/app/info/refs?service=git-upload-pack", auth=("git", token))
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"].startswith("Basic ")
    assert "token" in answer.json()["error"]


async def test_a_job_of_another_repository_does_not_even_learn_that_it_exists(base: str, job_token: Make) -> None:
    async with httpx.AsyncClient(auth=("git", await job_token("team/other"))) as client:
        foreign = await client.get(f"{base}/git/team/app/info/refs?service=git-upload-pack")
        absent = await client.get(f"{base}/git/team/none/info/refs?service=git-upload-pack")
    assert (foreign.status_code, foreign.json()) == (404, absent.json())


@pytest.mark.parametrize(
    "path",
    [
        "/git/team/app/info/refs",
        "/git/team/app/info/refs?service=git-receive-pack",
        "/git/team/app/HEAD",
        "/git/team/app/objects/info/packs",
        "/git/team/app/../../../../etc/passwd",
        "/git/team/app/%2e%2e/%2e%2e/etc/passwd/info/refs?service=git-upload-pack",
        "/git//etc/info/refs?service=git-upload-pack",
        "/git/team%2fapp%00/info/refs?service=git-upload-pack",
        "/git/--upload-pack=x/info/refs?service=git-upload-pack",
        "/git/info/refs?service=git-upload-pack",
    ],
)
async def test_hostile_paths_and_other_services_find_nothing(base: str, path: str, admin_token: Make) -> None:
    token = await admin_token("owner")
    host, port = base.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    basic = base64.b64encode(f"x:{token}".encode()).decode()
    writer.write(
        f"GET {path} HTTP/1.1\r\nHost: h\r\nAuthorization: Basic {basic}\r\nConnection: close\r\n\r\n".encode()
    )
    async with asyncio.timeout(10):
        answer = await reader.read()
    writer.close()
    assert int(answer.split()[1]) in (400, 403, 404)
    assert b"root:" not in answer


async def test_nobody_can_push(base: str, work: WorkTree, admin_token: Make) -> None:
    before = work.git("ls-remote", "origin")
    said = await run(
        "-C",
        str(work.path),
        "push",
        f"{base}/git/team/app",
        "HEAD:evil",
        env=header(await admin_token("owner")),
        check=False,
    )
    assert "403" in said
    assert work.git("ls-remote", "origin") == before


async def test_bodies_that_are_no_git_request_are_refused(base: str, job: str) -> None:
    url = f"{base}/git/team/app/git-upload-pack"
    kind = {"content-type": serve.REQUEST_TYPE}
    bomb = gzip.compress(b"\0" * (serve.MAX_REQUEST_BYTES + 1))
    async with httpx.AsyncClient(auth=("git", job)) as client:
        assert (await client.post(url, content=b"0000")).status_code == 400
        assert (await client.post(url, content=b"x", headers=kind | {"content-encoding": "gzip"})).status_code == 400
        assert (await client.post(url, content=b"x", headers=kind | {"content-encoding": "br"})).status_code == 400
        cut = gzip.compress(b"0000")[:-3]
        assert (await client.post(url, content=cut, headers=kind | {"content-encoding": "gzip"})).status_code == 400
        assert (await client.post(url, content=bomb, headers=kind | {"content-encoding": "gzip"})).status_code == 413


async def test_a_client_that_goes_away_leaves_no_git_behind(
    base: str, work: WorkTree, tmp_path: Path, job: str
) -> None:
    work.commit({f"{number}.bin": os.urandom(4_000_000) for number in range(5)})
    work.push()
    want = work.git("rev-parse", "HEAD")
    body = f"0011command=fetch0001000fno-progress0032want {want}\n0009done\n0000".encode()
    async with httpx.AsyncClient(auth=("git", job)) as client:
        kind = {"content-type": serve.REQUEST_TYPE, "git-protocol": "version=2"}
        async with client.stream("POST", f"{base}/git/team/app/git-upload-pack", content=body, headers=kind) as answer:
            assert answer.status_code == 200
            await anext(answer.aiter_bytes(65_536))
            assert await _serving(tmp_path)
    async with asyncio.timeout(10):
        while await _serving(tmp_path):
            await asyncio.sleep(0.02)


async def _serving(directory: Path) -> list[str]:
    """Command lines of living git processes that serve a repository below `directory`."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / "cmdline").read_bytes().decode(errors="replace")
            except OSError:
                continue
            if "upload-pack" in line and str(directory) in line:
                found.append(line)
    return found

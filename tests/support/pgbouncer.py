"""Debian's PgBouncer in transaction mode in front of a test's database, on a socket of its own, as an ordinary user."""

from __future__ import annotations

import asyncio
import os
import pwd
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import parse_qs, quote, urlsplit

import asyncpg
import pytest

PROGRAM = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
PORT = 6432
"""Part of the socket's name: no port is taken."""


@asynccontextmanager
async def pooled(database_url: str, folder: Path, *, size: int = 8) -> AsyncIterator[str]:
    """The URL that leads through a pool of `size` server connections. `folder` must be passable for other users.

    The server's socket belongs to its own user, so PgBouncer runs as that one.
    """
    if PROGRAM is None:
        pytest.skip("pgbouncer is not installed")
    direct = urlsplit(database_url)
    socket_dir = parse_qs(direct.query)["host"][0]
    home = folder / "pgbouncer"
    home.mkdir()
    owner = pwd.getpwuid(Path(socket_dir).stat().st_uid)
    (home / "users.txt").write_text(f'"{direct.username}" "{direct.password}"\n')
    (home / "pgbouncer.ini").write_text(
        f"""
[databases]
* = host={socket_dir} port=5432 connect_query='set idle_in_transaction_session_timeout = ''15s'''
[pgbouncer]
listen_addr =
listen_port = {PORT}
unix_socket_dir = {home}
unix_socket_mode = 0777
auth_type = plain
auth_file = {home}/users.txt
pool_mode = transaction
default_pool_size = {size}
max_client_conn = 200
logfile = {home}/log
"""
    )
    for path in (home, *home.iterdir()):
        os.chown(path, owner.pw_uid, owner.pw_gid)
    drops = os.geteuid() == 0
    process = subprocess.Popen(
        [PROGRAM, str(home / "pgbouncer.ini")],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        user=owner.pw_uid if drops else None,
        group=owner.pw_gid if drops else None,
        extra_groups=[] if drops else None,
    )
    url = f"postgresql://{direct.username}:{direct.password}@{direct.path}?host={quote(str(home), safe='')}&port={PORT}"
    try:
        async with asyncio.timeout(20):
            while True:
                assert process.poll() is None, (home / "log").read_text()
                try:
                    await (await asyncpg.connect(url, timeout=2, statement_cache_size=0)).close()
                except (OSError, asyncpg.PostgresError):
                    await asyncio.sleep(0.02)
                else:
                    break
        yield url
    finally:
        process.terminate()
        await asyncio.to_thread(process.wait, 10)

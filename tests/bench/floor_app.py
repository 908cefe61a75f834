"""The least that a webhook receiver must do: read, check the HMAC, insert one row, commit, answer. Bare ASGI.

`python -m tests.bench.floor_app FD` serves on an inherited socket; `FLOOR_DATABASE_URL` names the database.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import socket
import sys
from typing import Any

import asyncpg
import uvicorn

SECRET = b"hush"
INSERT = "insert into bench_floor (delivery, body) values ($1, $2)"
TABLE = "create table if not exists bench_floor (delivery text primary key, body bytea not null)"
pool: asyncpg.Pool[asyncpg.Record]


async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
    if scope["type"] == "lifespan":
        await lifespan(receive, send)
        return
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            break
    headers = dict(scope["headers"])
    expected = "sha256=" + hmac.new(SECRET, body, hashlib.sha256).hexdigest()
    if not hmac.compare_digest(expected.encode(), headers[b"x-hub-signature-256"]):
        raise ValueError("bad signature")
    await pool.execute(INSERT, headers[b"x-github-delivery"].decode(), body)
    await send({"type": "http.response.start", "status": 202, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


async def lifespan(receive: Any, send: Any) -> None:
    global pool
    await receive()
    pool = await asyncpg.create_pool(os.environ["FLOOR_DATABASE_URL"], min_size=10, max_size=10)
    await pool.execute(TABLE)
    await send({"type": "lifespan.startup.complete"})
    await receive()
    await pool.close()
    await send({"type": "lifespan.shutdown.complete"})


if __name__ == "__main__":
    # Not `fd=`: uvicorn takes that for a Unix socket, leaves Nagle's algorithm on, and each answer waits 40 ms.
    listener = socket.socket(fileno=int(sys.argv[1]))
    config = uvicorn.Config(app, log_level="warning", access_log=False, loop="uvloop", http="httptools")
    uvicorn.Server(config).run(sockets=[listener])

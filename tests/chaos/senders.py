"""Plays the forge: a real repository behind git's own HTTP server, and deliveries that are sent until taken."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import random
import uuid
from collections import Counter
from pathlib import Path

import httpx

from tests.chaos.cluster import Cluster
from tests.chaos.work import REPO, WORKFLOWS, push
from tests.support.git import WorkTree, bare
from tests.support.locks import lock

SECRET = "chaos"


class Senders:
    def __init__(self, cluster: Cluster, forge_url: str, repositories: Path, seed: int) -> None:
        self.answers: Counter[str] = Counter()
        self.accepted: list[str] = []
        """Delivery ids that got their 202, or were known already when they were sent again."""
        self._cluster = cluster
        self._clone_url = f"{forge_url}/{REPO}.git"
        self._dice = random.Random(seed + 1)
        tree = WorkTree(repositories / "tree", bare(repositories / f"{REPO}.git"))
        self._sha = tree.commit({".kici/kici.lock.json": lock(*WORKFLOWS)})
        tree.push("HEAD:main")

    async def register(self) -> None:
        answer = await self._cluster.http.post(
            f"{self._cluster.coordinators[0].url}/api/v1/admin/sources",
            json={"name": "chaos", "provider": "github", "secret": SECRET},
        )
        answer.raise_for_status()

    async def deliver(self, count: int, pause_s: float) -> None:
        """One after the other, each until it is taken."""
        for number in range(count):
            await self._send(number)
            if self._dice.random() < 0.1:
                await self._send(number, again=self.accepted[-1])
            await asyncio.sleep(self._dice.uniform(0, 2 * pause_s))

    async def _send(self, number: int, again: str = "") -> None:
        delivery = again or str(uuid.UUID(int=self._dice.getrandbits(128)))
        body = push(number, self._sha, self._clone_url)
        headers = {
            "content-type": "application/json",
            "x-github-event": "push",
            "x-github-delivery": delivery,
            "x-hub-signature-256": f"sha256={hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()}",
        }
        while True:
            to = self._dice.choice(self._cluster.coordinators)
            try:
                answer = await self._cluster.http.post(
                    f"{to.url}/webhook/default/github/chaos", content=body, headers=headers, timeout=3
                )
            except httpx.TransportError as error:
                self.answers[type(error).__name__] += 1
            else:
                self.answers[str(answer.status_code)] += 1
                if answer.status_code in (200, 202):
                    if not again:
                        self.accepted.append(delivery)
                    return
                if answer.status_code != 503:
                    raise AssertionError(f"a delivery was answered {answer.status_code}: {answer.text}")
            await asyncio.sleep(0.1)

"""The hook of a local repository: `python -I -m kici.forges.local.post_receive`, run by git in the bare repository.

The push is already accepted when it runs, and stays so whatever happens here. Each ref's delivery is made durable in
the repository before it is sent, and removed when the orchestrator has committed it; one that stays is fetched by the
orchestrator when it is back. What is printed reaches whoever pushed.
"""

from __future__ import annotations

import getpass
import json
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from pathlib import Path

from kici.forges.local import commits, delivery, spool
from kici.forges.local.hook_files import HookConfig, read_config, spool_directory

_TIMEOUT_S = 5


class _NotTaken(Exception):
    """The orchestrator is away, or does not want the delivery. The text is for the person who pushed."""


def main() -> int:
    repository = Path(os.environ.get("GIT_DIR", ".")).resolve()
    lines = sys.stdin.read().splitlines()
    try:
        config = read_config(repository)
        waiting = [(spool.write(spool_directory(repository), body), body) for body in _bodies(lines, config)]
    except (OSError, ValueError) as error:
        _say(f"the push is accepted, but no run can start: {error}")
        return 1
    for kept, body in waiting:
        try:
            _send(config, kept.delivery_id, body)
        except _NotTaken as problem:
            _say(str(problem))
            return 0
        spool.remove(kept)
    if waiting:
        _say("the orchestrator has the push: `kici runs list` shows what it starts")
    return 0


def _bodies(lines: Iterable[str], config: HookConfig) -> Iterator[bytes]:
    default_branch = commits.default_branch()
    for line in lines:
        before, after, ref = line.split(" ", 2)
        if not ref.startswith(("refs/heads/", "refs/tags/")):
            continue
        facts = commits.facts(before, after, ref, default_branch)
        yield json.dumps(
            {
                "repository": config.repository,
                "default_branch": default_branch,
                "ref": ref,
                "before": before,
                "after": after,
                "commit": facts.commit,
                "message": facts.message,
                "pusher": _pusher(),
                "changed_files": facts.changed_files,
            }
        ).encode()


def _send(config: HookConfig, delivery_id: str, body: bytes) -> None:
    headers = {
        **delivery.headers(delivery_id),
        delivery.SIGNATURE: delivery.signature(config.secret.encode(), body),
    }
    request = urllib.request.Request(config.url, data=body, headers=headers, method="POST")  # noqa: S310
    # The orchestrator is on this machine: a proxy in the environment of who pushes has no part in it.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=_TIMEOUT_S):
            return
    except urllib.error.HTTPError as refusal:
        with refusal:
            said = refusal.read(4096)
        if refusal.code >= 500:
            raise _NotTaken(_later(f"the orchestrator cannot take it now ({_sentence(said)})")) from None
        raise _NotTaken(f"the push is accepted, but the orchestrator refused it: {_sentence(said)}") from None
    except OSError:
        raise _NotTaken(_later(f"no orchestrator answers at {config.url}")) from None


def _later(why: str) -> str:
    return f"the push is accepted and kept; {why}, so the run starts when it is back"


def _sentence(answer: bytes) -> str:
    try:
        return str(json.loads(answer)["error"])
    except (ValueError, KeyError, TypeError):
        return "it gave no reason"


def _pusher() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def _say(sentence: str) -> None:
    sys.stderr.write(f"kici: {sentence}\n")


if __name__ == "__main__":
    sys.exit(main())

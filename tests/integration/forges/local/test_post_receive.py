"""The hook, run by a real git. What it delivers to a real orchestrator is shown with intake."""

from __future__ import annotations

import json
import stat
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from kici.forges.contract import Normalized, Source
from kici.forges.local import spool
from kici.forges.local.forge import LocalForge
from kici.forges.local.hook_files import HookConfig, config_file, install_hook, spool_directory

Git: TypeAlias = "Callable[..., subprocess.CompletedProcess[str]]"
Commit: TypeAlias = "Callable[..., str]"
Hooked: TypeAlias = "Callable[[str], Path]"

NOBODY = "http://127.0.0.1:9/webhook/demo"
SECRET = b"a secret of the hook"
SOURCE = Source(name="demo", provider="internal", routing_key="generic:default:1")
ZERO = "0" * 40


def kept(repository: Path) -> list[dict[str, Any]]:
    return [json.loads(delivery.file.read_text()) for delivery in spool.waiting(spool_directory(repository))]


@contextmanager
def orchestrator(status: int, answer: bytes = b"{}") -> Iterator[tuple[str, list[tuple[dict[str, str], bytes]]]]:
    """Answers every delivery alike and keeps what it was sent."""
    got: list[tuple[dict[str, str], bytes]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            got.append(({name.lower(): value for name, value in self.headers.items()}, body))
            self.send_response(status)
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/webhook/demo", got
        finally:
            server.shutdown()
            thread.join(10)


def test_a_push_without_an_orchestrator_is_accepted_and_kept(git: Git, commit: Commit, hooked: Hooked) -> None:
    repository = hooked(NOBODY)
    sha = commit("Say hello", "a.txt")
    said = git("push", "origin", "main").stderr
    assert "the push is accepted and kept" in said
    assert "the run starts when it is back" in said
    assert git("ls-remote", "origin", "main").stdout.split()[0] == sha
    [delivery] = kept(repository)
    assert (delivery["before"], delivery["after"], delivery["ref"]) == (ZERO, sha, "refs/heads/main")


def test_a_push_is_delivered_signed_and_then_forgotten(git: Git, commit: Commit, hooked: Hooked) -> None:
    with orchestrator(202) as (url, got):
        repository = hooked(url)
        first = commit("First", "a.txt", "b.txt")
        git("push", "origin", "main")
        second = commit("Second\n\nwith a body", "b.txt", "c/é.txt")
        assert "the orchestrator has the push" in git("push", "origin", "main").stderr
    assert kept(repository) == []
    assert len(got) == 2
    headers, body = got[1]
    forge = LocalForge()
    forge.verify(headers, body, [SECRET], SOURCE)
    found = forge.normalize("push", headers, body, SOURCE)
    assert isinstance(found, Normalized)
    event = found.event
    assert (event.sha, event.before, event.branch) == (second, first, "main")
    assert event.message == "Second\n\nwith a body"
    assert event.changed_files == ("b.txt", "c/é.txt")
    assert event.actor == "ada"


def test_what_an_orchestrator_cannot_take_now_is_kept(git: Git, commit: Commit, hooked: Hooked) -> None:
    with orchestrator(503, b'{"error": "the database is away"}') as (url, _):
        repository = hooked(url)
        commit("Say hello")
        said = git("push", "origin", "main").stderr
    assert "the database is away" in said
    assert "the run starts when it is back" in said
    assert len(kept(repository)) == 1


def test_a_refusal_is_told_to_who_pushed(git: Git, commit: Commit, hooked: Hooked) -> None:
    with orchestrator(401, b'{"error": "the signature does not fit"}') as (url, _):
        repository = hooked(url)
        commit("Say hello")
        assert "refused it: the signature does not fit" in git("push", "origin", "main").stderr
    assert len(kept(repository)) == 1


def test_each_ref_of_a_push_is_a_delivery_of_its_own_in_order(git: Git, commit: Commit, hooked: Hooked) -> None:
    repository = hooked(NOBODY)
    commit("First", "a.txt")
    git("push", "origin", "main")
    sha = commit("On the branch", "b.txt")
    git("tag", "-a", "v1", "-m", "release")
    git("push", "origin", "HEAD:refs/heads/topic", "v1", "HEAD:refs/notes/x")
    _, *deliveries = kept(repository)
    by_ref = {delivery["ref"]: delivery for delivery in deliveries}
    assert set(by_ref) == {"refs/heads/topic", "refs/tags/v1"}
    # A new branch has changed what it has beyond the default branch.
    assert by_ref["refs/heads/topic"]["changed_files"] == ["b.txt"]
    assert by_ref["refs/tags/v1"]["commit"] == sha != by_ref["refs/tags/v1"]["after"]
    assert by_ref["refs/tags/v1"]["message"] == "On the branch"


def test_a_deleted_branch_is_delivered_as_deleted(git: Git, commit: Commit, hooked: Hooked) -> None:
    repository = hooked(NOBODY)
    commit("First")
    git("push", "origin", "main", "HEAD:refs/heads/topic")
    git("push", "origin", "--delete", "topic")
    *_, delivery = kept(repository)
    assert (delivery["ref"], delivery["after"], delivery["commit"]) == ("refs/heads/topic", ZERO, "")


def test_too_many_changed_files_count_as_unknown(git: Git, commit: Commit, hooked: Hooked) -> None:
    repository = hooked(NOBODY)
    commit("First")
    git("push", "origin", "main")
    commit("Many", *(f"d{n % 50}/f{n}" for n in range(3001)))
    git("push", "origin", "main")
    assert kept(repository)[-1]["changed_files"] is None


def test_nothing_of_the_secret_is_readable_by_others(hooked: Hooked, isolated_python: str) -> None:
    repository = hooked(NOBODY)
    assert stat.S_IMODE(config_file(repository).stat().st_mode) == 0o600
    assert stat.S_IMODE(spool_directory(repository).stat().st_mode) == 0o700
    assert SECRET.decode() not in (repository / "hooks" / "post-receive").read_text()
    config = HookConfig(NOBODY, SECRET.decode(), "local/demo")
    assert SECRET.decode() not in repr(config)
    install_hook(repository, config._replace(url="http://127.0.0.1:8/"), python=isolated_python)
    assert json.loads(config_file(repository).read_text())["url"] == "http://127.0.0.1:8/"
    assert stat.S_IMODE(config_file(repository).stat().st_mode) == 0o600


def test_a_broken_set_up_does_not_break_the_push(git: Git, commit: Commit, hooked: Hooked) -> None:
    repository = hooked(NOBODY)
    config_file(repository).write_text("{}")
    sha = commit("Say hello")
    assert "the push is accepted, but no run can start" in git("push", "origin", "main").stderr
    assert git("ls-remote", "origin", "main").stdout.split()[0] == sha


@pytest.mark.parametrize("name", ["x.json", "1-2.json", "00000000000000000001-zz.part"])
def test_a_spool_holds_nothing_but_finished_deliveries(tmp_path: Path, name: str) -> None:
    first = spool.write(tmp_path, b"1")
    second = spool.write(tmp_path, b"2")
    (tmp_path / name).write_bytes(b"stranger")
    assert list(spool.waiting(tmp_path)) == [first, second]
    spool.set_aside(first)
    spool.remove(second)
    spool.remove(second)
    assert list(spool.waiting(tmp_path)) == []

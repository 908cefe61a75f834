"""`python -m demo [--keep]`: a real `kici up`, a real repository, a real push. Exit 0 only if all went as expected."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from kici.cli import run_events, run_tree
from kici.cli.client import Client
from kici.errors import KiciError
from kici.wire import api

REPOSITORY = Path(__file__).parent / "repository"
KICI = (sys.executable, "-m", "kici.cli.main")
START_S = 60
STOP_S = 60
RUN_S = 60

EXPECTED_JOBS = {"build": "success", "test (lower)": "success", "test (upper)": "success", "report": "success"}
EXPECTED_REPORT = {"report": "2 tests agree on 29 characters"}


class DemoError(KiciError):
    code = "demo_failed"


def main() -> int:
    parser = argparse.ArgumentParser(prog="make demo")
    parser.add_argument("--keep", action="store_true", help="leave everything running (make demo KEEP=1)")
    keep = parser.parse_args().keep
    console = Console(highlight=False, soft_wrap=True)
    base = Path(tempfile.mkdtemp(prefix="kici-demo-"))
    base.chmod(0o711)
    try:
        with started(base, console, keep=keep) as (client, remote):
            problems = demonstrate(base, client, remote, console)
            where_next(base, client, console, keep=keep)
    except (KiciError, subprocess.CalledProcessError) as error:
        console.print(f"[red]error:[/] {error}")
        return 1
    finally:
        if not keep:
            shutil.rmtree(base, ignore_errors=True)
    for problem in problems:
        console.print(f"[red]not as expected:[/] {problem}")
    return 1 if problems else 0


@contextlib.contextmanager
def started(base: Path, console: Console, *, keep: bool) -> Iterator[tuple[Client, str]]:
    """`kici up` in a directory of its own. It is stopped in the end, unless it is to be kept."""
    console.print("[bold]$ kici up[/]")
    began = time.monotonic()
    with (base / "up.err").open("wb") as errors:
        process = subprocess.Popen(
            [*KICI, "up", "--json", "--port", "0", "--repository", "demo", "--slots", "2", "--data-dir", base / "data"],
            env=os.environ | {"KICI_CONFIG_DIR": str(base / "config")},
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
        )
    try:
        assert process.stdout
        with limited(START_S, "kici up", process):
            line = process.stdout.readline()
        if not line:
            raise DemoError(f"kici up did not start:\n{(base / 'up.err').read_text()}")
        said = json.loads(line)
        token = json.loads(Path(said["config"]).read_text())["token"]
        console.print(f"[dim]ready after {time.monotonic() - began:.1f} s: orchestrator, PostgreSQL and an agent[/]")
        with Client(said["url"], token) as client:
            yield client, said["remote"]
    except BaseException:
        keep = False
        raise
    finally:
        if not keep:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if process.stdout:
            process.stdout.close()


def demonstrate(base: Path, client: Client, remote: str, console: Console) -> list[str]:
    """Push a commit and follow its run. What was not as expected, as sentences."""
    root = make_repository(base, console)
    sha = run(root, "git", "rev-parse", "HEAD").strip()
    shown(console, root, "git", "push", "-q", remote, "HEAD:main")
    pushed = time.monotonic()
    found = wait_for(lambda: run_of(client, sha), f"a run of {sha[:7]}")
    with limited(RUN_S, "the run"):
        watch(client, found.run_id, console)
    console.print(f"[dim]{time.monotonic() - pushed:.1f} s from push to end[/]\n")
    ended = client.get(f"/runs/{found.run_id}", api.RunAnswer).run
    jobs = client.get(f"/runs/{found.run_id}/jobs", api.JobList, {"includeSteps": "true"}).jobs
    console.print(run_tree.rich_tree(ended, jobs, now()))
    console.print()
    return differences(ended, jobs)


def make_repository(base: Path, console: Console) -> Path:
    root = base / "repository"
    shutil.copytree(REPOSITORY, root)
    console.print(f"[bold]$ cd {root}[/]")
    run(root, "git", "init", "-q", "-b", "main")
    shown(console, root, *KICI, "compile", label="kici compile")
    run(root, "git", "add", "-A")
    identity = ("-c", "user.name=Demo", "-c", "user.email=demo@example.com", "-c", "commit.gpgsign=false")
    run(root, "git", *identity, "commit", "-q", "-m", "Greet everybody")
    return root


def watch(client: Client, run_id: str, console: Console) -> None:
    """The tree moves at the bottom while the logs run through above it."""
    ended: api.Run | None = None
    jobs: dict[str, api.Job] = {}

    def tree() -> Text | str:
        return run_tree.rich_tree(ended, list(jobs.values()), now()) if ended else ""

    with Live(console=console, refresh_per_second=10, transient=True, get_renderable=lambda: Group("", tree())):
        for happening in run_events.follow(client, run_id, logs=True):
            match happening:
                case api.Run():
                    ended = happening
                case api.Job():
                    jobs[happening.job_id] = happening
                case api.LogLines():
                    for line in happening.lines:
                        name = Text(f"{happening.job_name:>12} ", "cyan")
                        console.print(name + Text(line.partition(" ")[2]))


def differences(ended: api.Run, jobs: Sequence[api.Job]) -> list[str]:
    found = []
    if ended.status != "success":
        found.append(f"the run ended as {ended.status}: {ended.failure_reason}")
    statuses = {job.job_name: job.status for job in jobs}
    if statuses != EXPECTED_JOBS:
        found.append(f"the jobs ended as {statuses}")
    for job in jobs:
        if job.job_name == "report" and job.outputs != EXPECTED_REPORT:
            found.append(f"the report says {job.outputs}")
        style = [step for step in job.steps or [] if step.step_name == "style"]
        if job.base_job_name == "test" and [(step.status, step.exit_code) for step in style] != [("failed", 3)]:
            found.append(f"the step that may fail did not fail in {job.job_name}")
    return found


def where_next(base: Path, client: Client, console: Console, *, keep: bool) -> None:
    found = client.get("/runs", api.RunList, {"limit": 1}).runs[0]
    if not keep:
        console.print(
            "Keep it running with [bold]make demo KEEP=1[/], or start your own with [bold].venv/bin/kici up[/]:"
        )
    prefix = f"KICI_CONFIG_DIR={base / 'config'} .venv/bin/" if keep else ""
    console.print(f"  {prefix}kici runs show {found.run_id[:8]}")
    console.print(f"  {prefix}kici runs logs {found.run_id[:8]}")
    console.print(f"  {client.url}/api/v1/admin/runs/{found.run_id}   the API; {client.url}/schema describes it")
    if keep:
        console.print(f"  pkill -TERM -f {base / 'data'}   stops it; then remove {base}")


def run_of(client: Client, sha: str) -> api.Run | None:
    runs = client.get("/runs", api.RunList, {"limit": 20}).runs
    return next((one for one in runs if one.sha == sha), None)


def wait_for(look: Callable[[], api.Run | None], what: str) -> api.Run:
    deadline = time.monotonic() + RUN_S
    while time.monotonic() < deadline:
        found = look()
        if found is not None:
            return found
        time.sleep(0.02)
    raise DemoError(f"waited {RUN_S} s for {what}")


@contextlib.contextmanager
def limited(seconds: int, what: str, process: subprocess.Popen[bytes] | None = None) -> Iterator[None]:
    """Raise `DemoError` inside after that time."""

    def late(*_: object) -> None:
        if process is not None:
            process.kill()
        raise DemoError(f"{what} took more than {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def run(cwd: Path, *argv: str) -> str:
    done = subprocess.run(argv, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        raise DemoError(f"{' '.join(argv)} failed: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout + done.stderr


def shown(console: Console, cwd: Path, *argv: str, label: str = "") -> None:
    console.print(Text(f"$ {label or ' '.join(argv)}", "bold"))
    said = run(cwd, *argv).strip()
    if said:
        console.print(Text(said, "dim"))


def now() -> datetime:
    return datetime.now(UTC)


if __name__ == "__main__":
    sys.exit(main())

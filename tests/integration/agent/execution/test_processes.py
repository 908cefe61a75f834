"""What jobs do with processes: nothing is left, hangs, or counts as a success that is none, and the next step runs."""

from __future__ import annotations

import os
import resource
import signal
from pathlib import Path

import pytest

from kici.agent.sandbox.contract import Limits
from kici.runner.processes import is_zombie
from tests.integration.agent.execution.conftest import SANDBOXES, Jobs

pytestmark = pytest.mark.parametrize("jobs", list(SANDBOXES), indirect=True)

DAEMON = """
import os, socket, sys, time
if os.fork(): os._exit(0)
os.setsid()
if os.fork(): os._exit(0)
taken = socket.socket(socket.AF_UNIX)
taken.bind("\\0kici-test-" + sys.argv[1])
import fcntl
lock = open("lock", "w")
fcntl.flock(lock, fcntl.LOCK_EX)
open("ready", "w").close()
import resource
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
time.sleep(1000)
"""
TAKE = """
import fcntl, socket, sys
fcntl.flock(open("lock", "w"), fcntl.LOCK_EX | fcntl.LOCK_NB)
socket.socket(socket.AF_UNIX).bind("\\0kici-test-" + sys.argv[1])
print("taken over")
"""


def steps(*commands: str, **options: str) -> str:
    """A workflow of one job with these commands as steps."""
    more = "".join(f", {name}={value!r}" for name, value in options.items())
    made = ", ".join(f"step('s{number}', {text!r})" for number, text in enumerate(commands))
    return f"ci = workflow('ci', jobs=[job('build', runs_on='linux', steps=[{made}]{more})])"


def function(*body: str, then: str = "echo next step") -> str:
    """A workflow of a step that is a function, and one after it."""
    lines = "\n".join(f"    {line}" for text in body for line in text.split("\n"))
    return (
        "import asyncio, os, resource, signal, subprocess, sys, threading, time\n"
        f"@step\ndef first(ctx: Ctx):\n{lines}\n"
        f"ci = workflow('ci', jobs=[job('build', runs_on='linux', steps=[first, step('then', {then!r})])])"
    )


def left_of(root: Path) -> list[int]:
    """Processes on this machine whose working directory is below the job's, zombies apart."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid() and not is_zombie(int(name)):
            try:
                where = os.readlink(f"/proc/{name}/cwd")
            except OSError:
                continue
            if where.startswith(str(root)):
                found.append(int(name))
    return found


@pytest.fixture(autouse=True)
def nothing_is_left(jobs: Jobs) -> object:
    yield
    assert left_of(jobs.root) == []


# ── ways to get away ─────────────────────────────────────────────────────────────────────────────────────────────────


async def test_what_a_daemon_of_one_step_held_is_free_for_the_next_step(jobs: Jobs) -> None:
    (jobs.root / "src/daemon.py").write_text(DAEMON)
    (jobs.root / "src/take.py").write_text(TAKE)
    key = jobs.root.name
    ended = await jobs.run_whole(
        steps(
            f"python3 daemon.py {key}; until [ -e ready ]; do sleep 0.01; done",
            f"python3 take.py {key}",
        )
    )
    assert ended.status == "success", jobs.sink.text
    assert "taken over" in jobs.sink.text
    assert "still running" in jobs.sink.text
    assert "python3" in jobs.sink.text


async def test_a_child_that_ignores_sigterm_does_not_survive_its_timeout(jobs: Jobs) -> None:
    source = """
        ci = workflow("ci", jobs=[job("build", runs_on="linux", steps=[
            step("deaf", "trap '' TERM; (trap '' TERM; while :; do sleep 0.05; done) & while :; do sleep 0.05; done",
                 timeout="1s", continue_on_error=True),
            "echo next step"])])
    """
    ended = await jobs.run_whole(source)
    assert ended.status == "success", ended
    assert jobs.sink.ended[0].reason == "timeout"
    assert "next step" in jobs.sink.text


async def test_a_child_that_keeps_the_output_open_is_told_and_delays_nothing(jobs: Jobs) -> None:
    ended = await jobs.run_whole(steps("sleep 1000 & until grep -q sleep /proc/$!/comm; do :; done", "echo next step"))
    assert ended.status == "success"
    assert "[kici] still running at its end, and stopped: sleep" in jobs.sink.text
    assert "next step" in jobs.sink.text


async def test_a_daemon_at_the_end_of_the_job_ends_with_it(jobs: Jobs) -> None:
    ended = await jobs.run_whole(steps("setsid nohup sleep 1000 >/dev/null 2>&1 & exit 0"))
    assert ended.status == "success"
    assert left_of(jobs.root) == []


async def test_a_thousand_zombies_are_reaped(jobs: Jobs) -> None:
    (jobs.root / "src/storm.py").write_text(
        "import os, time\nfor _ in range(1000):\n    if os.fork() == 0: os._exit(0)\nprint('a thousand', flush=True)\n"
    )
    count = (
        "import os, pathlib\n"
        "def state(path):\n"
        "    try: return path.read_text().rpartition(')')[2].split()[:2]\n"
        "    except OSError: return '', ''\n"
        "print('zombies', sum(state(p)[0] == 'Z' and p.parent.stat().st_uid == os.getuid() and\n"
        "                     int(state(p)[1]) in (1, int(os.environ['RUNNER']))\n"
        "                     for p in pathlib.Path('/proc').glob('[0-9]*/stat')))\n"
    )
    (jobs.root / "src/count.py").write_text(count)
    ended = await jobs.run_whole(steps("exec python3 storm.py", "RUNNER=$PPID exec python3 count.py"))
    assert ended.status == "success"
    assert "a thousand" in jobs.sink.text
    told = int(jobs.sink.text.split("zombies ")[1].split()[0])
    assert told < 10, told


# ── output ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_bytes_that_are_no_text_arrive_as_they_are(jobs: Jobs) -> None:
    ended = await jobs.run_whole(
        steps(r"printf '\377\376\000\033[31mred\033[0m 10%%\r50%%\r100%%\r\n'; head -c 1000000 /dev/urandom; exit 5")
    )
    assert (ended.status, ended.exit_code) == ("failed", 5)
    assert bytes(jobs.sink.log[0]).startswith(b"\xff\xfe\x00\x1b[31mred\x1b[0m 10%\r50%\r100%\r\n")
    assert len(jobs.sink.log[0]) >= 1_000_000
    assert jobs.sink.ended[0].error.isprintable()


async def test_fifty_megabytes_without_a_newline_hide_nothing_of_what_follows(jobs: Jobs) -> None:
    ended = await jobs.run_whole(steps("head -c 50000000 /dev/zero | tr '\\0' x; echo; echo after; exit 3"))
    assert len(jobs.sink.log[0]) == 50_000_000 + len("\nafter\n")
    assert ended.error.endswith("exit code 3; its last output: after")


# ── user code against the runner ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("os._exit(0)", "the runner exited with code 0 before the job ended"),
        ("os._exit(7)", "the runner exited with code 7 before the job ended"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "the runner was killed by SIGKILL before the job ended"),
        ("os.abort()", "the runner was killed by SIGABRT before the job ended"),
        # On a busy machine its end may be seen a second after that of its socket, which is told then.
        ("os.close(3)\nos._exit(0)", "before the job ended"),
        ("os.closerange(0, 4096)\nos._exit(0)", "before the job ended"),
        ("os.write(3, b'garbage that is no message')\ntime.sleep(1000)", "the runner broke the protocol"),
        ("os.execvp('true', ['true'])", "the runner exited with code 0 before the job ended"),
    ],
)
async def test_a_runner_that_is_ended_or_broken_from_inside_fails_its_job_with_a_reason(
    jobs: Jobs, body: str, said: str
) -> None:
    ended = await jobs.run_whole(function(body))
    assert ended.status == "failed"
    assert said in ended.error
    assert ended.reason == "runner"
    assert jobs.sink.ends == ["failed"]
    assert jobs.sink.ended[0].error == ended.error


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("sys.exit(0)", "the step called sys.exit(0)"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("raise SystemExit", "the step called sys.exit(None)"),
        ("raise BaseExceptionGroup('several', [KeyboardInterrupt(), ValueError('x')])", "BaseExceptionGroup: several"),
        ("raise GeneratorExit", "GeneratorExit"),
        ("raise asyncio.CancelledError", "its code cancelled itself"),
        ("raise type('Odd', (Exception,), {'__str__': lambda self: 1 / 0})()", "Odd"),
    ],
)
@pytest.mark.parametrize("kind", ["def", "async def"])
async def test_whatever_a_step_raises_fails_the_step_alone(jobs: Jobs, body: str, said: str, kind: str) -> None:
    source = function(body).replace("@step\ndef", f"@step(continue_on_error=True)\n{kind}")
    ended = await jobs.run_whole(source)
    assert ended.status == "success", ended
    assert (jobs.sink.ended[0].status, jobs.sink.ended[1].status) == ("failed", "success")
    assert said in jobs.sink.ended[0].error
    assert "next step" in jobs.sink.text


@pytest.mark.parametrize(
    "body",
    [
        "if os.fork() == 0:\n    time.sleep(1000)",
        "if os.fork() == 0:\n    return 'from the child'",
        "if os.fork() == 0:\n    raise ValueError('in the child')",
        "if os.fork() == 0:\n    os.write(1, b'child\\n'); os._exit(3)",
    ],
)
async def test_a_step_that_forks_the_runner_is_told_apart_from_its_copy(jobs: Jobs, body: str) -> None:
    ended = await jobs.run_whole(function(body + "\nreturn 'from the parent'"))
    assert ended.status == "success", ended
    assert ended.outputs == {"first": "from the parent"}
    assert jobs.sink.ends == ["success", "success"]
    assert jobs.sink.text.count("next step") == 1


@pytest.mark.parametrize(
    "body",
    [
        "for one in range(1, 65):\n    try: signal.signal(one, signal.SIG_IGN)\n    except (OSError, ValueError): pass",
        "for _ in range(20): threading.Thread(target=time.sleep, args=(1000,)).start()",
        "def spin():\n    while True: time.sleep(0.001)\nfor _ in range(3): threading.Thread(target=spin).start()",
        "os.close(0)\nos.close(1)\nos.close(2)",
        "sys.stdout.close()\nsys.stderr.close()",
        "os.setsid() if os.getsid(0) != os.getpid() else None\nos.nice(5)",
    ],
    ids=["signals", "threads", "busy threads", "descriptors", "streams", "session"],
)
@pytest.mark.parametrize("kind", ["def", "async def"])
async def test_what_a_step_does_to_the_runner_does_not_reach_the_next_step(jobs: Jobs, body: str, kind: str) -> None:
    source = function(body, then="trap 'echo got it' TERM; kill -TERM $$; echo next step")
    ended = await jobs.run_whole(source.replace("@step\ndef", f"@step\n{kind}"))
    assert ended.status == "success", (ended, jobs.sink.text)
    assert "got it" in jobs.sink.text
    assert "next step" in jobs.sink.text


async def test_directory_umask_and_limits_do_not_reach_the_next_step(jobs: Jobs) -> None:
    body = "os.chdir('/')\nos.umask(0o777)\nresource.setrlimit(resource.RLIMIT_NOFILE, (40, resource.getrlimit(7)[1]))"
    show = "echo dir $PWD; echo umask $(umask); echo files $(ulimit -Sn); echo core $(ulimit -Sc)"
    source = function(body, then=show).replace("steps=[first", f"steps=[step('before', {show!r}), first")
    ended = await jobs.run_whole(source)
    assert ended.status == "success", (ended, jobs.sink.text)
    assert bytes(jobs.sink.log[0]) == bytes(jobs.sink.log[2])


async def test_a_runner_that_is_stopped_does_not_outlive_its_timeout(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kici.agent.execution.STEP_S", 0.5)
    source = function("os.kill(os.getpid(), signal.SIGSTOP)").replace("@step\n", "@step(timeout='1s')\n")
    ended = await jobs.run_whole(source)
    assert (ended.status, ended.reason) == ("failed", "timeout")
    assert "did not stop at its timeout of 1 s: the job was killed" in ended.error


async def test_a_runner_that_is_stopped_can_be_cancelled(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kici.agent.execution.REPORT_S", 0.3)
    source = function("print('ready', flush=True)\ntime.sleep(0.2)\nos.kill(os.getpid(), signal.SIGSTOP)")
    ended = await jobs.run_whole(source.replace("runs_on=", "grace_period='1s', runs_on="), cancel_at="ready")
    assert (ended.status, ended.reason, ended.error) == ("cancelled", "cancelled", "nobody wants it")


async def test_a_step_that_kills_all_that_it_can_see_ends_its_own_job_at_most(jobs: Jobs) -> None:
    if jobs.sandbox.name == "none":
        pytest.skip("without a sandbox a step can kill what its user can kill: that is the agent's machine")
    ended = await jobs.run_whole(steps("set +e; kill -KILL 1; kill -KILL $PPID; kill -KILL -1; sleep 1000"))
    assert (ended.status, ended.reason) == ("failed", "runner")
    assert ended.signal in ("SIGKILL", "")
    assert signal.SIGKILL.name in ended.error or "exited" in ended.error


async def test_too_many_processes_fail_the_step_that_starts_them_and_nothing_else(jobs: Jobs) -> None:
    jobs.limits = Limits(pids=100)
    (jobs.root / "src/bomb.py").write_text("import os, time\nfor _ in range(500):\n    os.fork() or time.sleep(1000)\n")
    async with jobs.prepared() as execution:
        assert execution._box
        if execution._box.usage().refused_processes is None:
            pytest.skip(f"the sandbox {jobs.sandbox.name} does not count processes here")
    source = """
        ci = workflow("ci", jobs=[job("build", runs_on="linux", steps=[
            step("bomb", "python3 bomb.py", continue_on_error=True), "echo next step"])])
    """
    ended = await jobs.run_whole(source)
    assert ended.status == "success", ended
    assert "it reached its limit of 100 processes" in jobs.sink.ended[0].error
    assert "next step" in jobs.sink.text


async def test_a_fast_writer_does_not_fill_the_agents_memory(jobs: Jobs) -> None:
    taken = 0

    async def forget(index: int, data: bytes) -> None:
        nonlocal taken
        taken += len(data)

    jobs.sink.output = forget  # type: ignore[method-assign]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    ended = await jobs.run_whole(steps("head -c 400000000 /dev/zero"))
    assert ended.status == "success"
    assert taken == 400_000_000
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024


async def test_a_command_that_reads_its_input_finds_its_end(jobs: Jobs) -> None:
    ended = await jobs.run_whole(steps("cat; read line || echo end of input", "python3 -c 'input()' || echo next step"))
    assert ended.status == "success"
    assert "end of input" in jobs.sink.text
    assert "next step" in jobs.sink.text


async def test_what_a_step_wrote_last_before_its_runner_died_is_in_the_log(jobs: Jobs) -> None:
    lines = "".join(f"line {number}\n" for number in range(20_000))
    ended = await jobs.run_whole(
        function("sys.stdout.write(''.join(f'line {n}\\n' for n in range(20_000)))\nsys.stdout.flush()\nos._exit(0)")
    )
    assert ended.status == "failed"
    assert jobs.sink.text == lines


async def test_a_command_that_takes_too_much_memory_is_named_with_limit_and_peak(jobs: Jobs) -> None:
    jobs.limits = Limits(memory_bytes=128 * 1024**2)
    (jobs.root / "src/greedy.py").write_text("print(len(bytearray(b'x' * 400_000_000)))")
    async with jobs.prepared() as execution:
        assert execution._box
        if execution._box.usage().out_of_memory_kills is None:
            pytest.skip(f"the sandbox {jobs.sandbox.name} limits no memory here")
    source = """
        ci = workflow("ci", jobs=[job("build", runs_on="linux", steps=[
            step("greedy", "python3 greedy.py", continue_on_error=True),
            step("wrong", "exit 1")])])
    """
    ended = await jobs.run_whole(source)
    greedy, wrong = jobs.sink.ended[0], jobs.sink.ended[1]
    assert (greedy.reason, greedy.signal or greedy.exit_code) == ("out_of_memory", "SIGKILL"), greedy
    assert "the job ran out of memory and a process was killed (limit 128 MiB, peak " in greedy.error
    assert greedy.peak_memory_bytes
    assert (wrong.reason, ended.reason, ended.error) == (
        "exit_code",
        "exit_code",
        "step 'wrong' failed: exit 1 failed: exit code 1",
    )
    assert ended.peak_memory_bytes

"""`python -I -m kici.runner`: one job, then the end of the process."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import threading
import traceback

from kici.engine.failure import Reason
from kici.runner import job
from kici.runner.capture import Capture
from kici.runner.environment import Environment
from kici.runner.link import Link
from kici.runner.processes import adopt_orphans
from kici.runner.telling import sentence, traceback_text
from kici.runner.workflow import Found, WorkflowMismatch, find
from kici.sdk import loading  # noqa: F401 - all that a job needs is imported before `Ready`
from kici.wire.runner import FD, JobEnded, Ping, Pong, Ready, Start, StepEnded, StepStarted


def main() -> int:
    os.set_inheritable(FD, False)
    link = Link(socket.socket(fileno=FD))
    link.send(Ready(os.getpid()))
    threading.Thread(target=_end_with_host, args=(link,), name="kici-host", daemon=True).start()
    while isinstance(start := link.receive(), Ping):
        link.send(Pong())
    if not isinstance(start, Start):  # the host does not want a job run, or closed the socket
        return 0
    adopt_orphans()
    code = 0
    try:
        _serve(start, link)
    except (OSError, job.HostGone):  # the host is gone, and with it everybody who wanted to know
        job.leave_nothing()
        code = 1
    except BaseException:  # noqa: BLE001 - a mistake of ours: the host says that the runner has died
        traceback.print_exc()
        sys.stderr.flush()
        code = 70
    # Without the interpreter's farewell: a thread of a step that hangs would keep us.
    os._exit(code)


def _end_with_host(link: Link) -> None:
    """Also while a step keeps the loop busy: nobody else would end it when the host has died."""
    link.wait_for_hangup()
    job.leave_nothing()
    os._exit(1)


def _serve(start: Start, link: Link) -> None:
    environment = Environment(start.env, secrets=start.context.secrets.keys())
    os.chdir(start.root)
    capture = Capture(link)
    # The first step begins with the import of the module, so that the log of a failing import has a place.
    link.send(StepStarted(0))
    capture.begin(0)
    found = _import(start, link, capture)
    if found is not None:
        # Not asyncio.run: it would wait for such threads too.
        link.send(asyncio.new_event_loop().run_until_complete(job.run(start, found, environment, link, capture)))


def _import(start: Start, link: Link, capture: Capture) -> Found | None:
    """Not inside an event loop: module level code may run one, as it may under `kici compile`."""
    try:
        return find(start)
    except BaseException as error:  # noqa: BLE001 - also SystemExit: it is the author's code
        if isinstance(error, WorkflowMismatch):
            reason = str(error)
        else:
            reason = f"the workflow cannot be imported: {sentence(error)}"
            capture.say(traceback_text(error, start.kici_dir))
        capture.end_now(0)
        link.send(StepEnded(0, "failed", error=reason, reason=Reason.ERROR))
        link.send(JobEnded("failed", reason, failed_step=0))
        return None


if __name__ == "__main__":
    raise SystemExit(main())

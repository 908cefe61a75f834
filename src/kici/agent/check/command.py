"""`kici-agent check`: all hops in order, a line for each or one JSON document, and the exit code."""

from __future__ import annotations

import asyncio
import os
import sys
from collections import Counter
from collections.abc import MutableMapping, Sequence

import msgspec
import structlog

import kici
from kici.agent.check import boxes, machine, network, orchestrator
from kici.agent.check.hop import Hop, Result, Status, run
from kici.agent.check.known import Known

HOPS: Sequence[Hop[Known]] = (*machine.HOPS, *boxes.HOPS, *network.HOPS, *orchestrator.HOPS, *boxes.LAST)
_WIDTH = max(len(hop.name) for hop in HOPS)
_COLOURS = {Status.OK: 32, Status.WARN: 33, Status.FAIL: 31, Status.SKIPPED: 90}


def check(environ: MutableMapping[str, str], *, as_json: bool) -> int:
    """0 if nothing failed, else 1. The token is taken out of `environ`."""
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger("error"),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
    )
    known = Known(environ)

    def tell(result: Result) -> None:
        if not as_json:
            print(_line(result, known), flush=True)  # noqa: T201

    try:
        results = asyncio.run(run(HOPS, known, tell))
    except KeyboardInterrupt:
        return 130
    finally:
        known.leave()
    counts = Counter(result.finding.status for result in results)
    if as_json:
        print(_document(results, known).decode())  # noqa: T201
    else:
        print(", ".join(f"{counts[status]} {status}" for status in Status))  # noqa: T201
    return 1 if counts[Status.FAIL] else 0


def _line(result: Result, known: Known) -> str:
    finding = result.finding
    told = f"{finding.told} → {finding.way_out}" if finding.way_out else finding.told
    status = f"{finding.status:<7}"
    if sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb":
        status = f"\x1b[{_COLOURS[finding.status]}m{status}\x1b[0m"
    line = f"{status}  {result.hop:<{_WIDTH}}  {known.hidden(told)}"
    encoding = sys.stdout.encoding or "ascii"
    return line.encode(encoding, "replace").decode(encoding)


def _document(results: Sequence[Result], known: Known) -> bytes:
    return msgspec.json.encode(
        {
            "ok": all(result.finding.status is not Status.FAIL for result in results),
            "version": kici.__version__,
            "agentId": known.agent_id,
            "hops": [
                {
                    "name": result.hop,
                    "status": result.finding.status,
                    "told": known.hidden(result.finding.told),
                    "wayOut": known.hidden(result.finding.way_out),
                    "tookMs": round(result.took_s * 1000),
                }
                for result in results
            ],
        }
    )

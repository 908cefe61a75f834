"""What a job gets of a machine: its own `resources` against what the agent gives a job. Agents and `kici run local`
share it."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from kici.engine.failure import size
from kici.engine.lockfile import LockAmount, LockResources

MAX_CPU_MILLIS = 256_000


class Offer(Struct, frozen=True):
    """What there is for one job."""

    given: LockAmount
    """The operator's limits of a job; absent = none."""
    machine: LockAmount
    """What the whole machine has."""


class Verdict(Struct, frozen=True):
    limits: LockAmount
    """Of the job's processes together: of the operator's and the job's the lower one, value by value."""
    remarks: tuple[str, ...] = ()
    """For the job's log."""
    problem: str = ""
    """Set: the job cannot run here, and this says why and what to do."""


def decide(wanted: LockResources | None, offer: Offer) -> Verdict:
    if wanted is None:
        return Verdict(offer.given)
    own = wanted.limits
    return Verdict(
        LockAmount(_lower(own.cpu_millis, offer.given.cpu_millis), _lower(own.memory_bytes, offer.given.memory_bytes)),
        tuple(_lowered(own, offer.given)),
        "; ".join(_lacking(wanted.requests, offer)),
    )


def not_kept(wanted: LockResources | None, held: LockAmount) -> tuple[str, ...]:
    """What the log says of the job's limits that nobody keeps; `held` is what holds now."""
    own = wanted.limits if wanted else LockAmount()
    kinds = (
        ("memory", own.memory_bytes, held.memory_bytes, _memory),
        ("cpus", own.cpu_millis, held.cpu_millis, _cores),
    )
    return tuple(
        f"the job's limit of {shown(most)} ({name}) is not kept here: there is no control group that could be limited"
        for name, most, now, shown in kinds
        if most is not None and (now is None or now > most)
    )


def problems(wanted: LockResources | None) -> Iterator[str]:
    """What cannot be so in a lock file."""
    if wanted is None:
        return
    for side, amount in (("requests", wanted.requests), ("limits", wanted.limits)):
        if amount.cpu_millis is not None and not 0 < amount.cpu_millis <= MAX_CPU_MILLIS:
            yield f"has {side} of {amount.cpu_millis} cpuMillis; it is 1 to {MAX_CPU_MILLIS:,}"
        if amount.memory_bytes is not None and amount.memory_bytes <= 0:
            yield f"has {side} of {amount.memory_bytes} memoryBytes; it is at least 1"
    for needs, most in (
        (wanted.requests.cpu_millis, wanted.limits.cpu_millis),
        (wanted.requests.memory_bytes, wanted.limits.memory_bytes),
    ):
        if needs is not None and most is not None and needs > most:
            yield "requests more than its limit"


def _lacking(requests: LockAmount, offer: Offer) -> Iterator[str]:
    given, machine = offer.given, offer.machine
    for what, needs, most, has, setting, shown in (
        ("of memory", requests.memory_bytes, given.memory_bytes, machine.memory_bytes, "KICI_JOB_MEMORY", _memory),
        ("of processor time", requests.cpu_millis, given.cpu_millis, machine.cpu_millis, "KICI_JOB_CPUS", _cores),
    ):
        if needs is None:
            continue
        if most is not None and needs > most:
            yield (
                f"the job requests {shown(needs)} {what}, and this agent gives a job {shown(most)}: raise {setting}"
                " there, or choose a larger agent by labels in runs_on"
            )
        elif has is not None and needs > has:
            yield (
                f"the job requests {shown(needs)} {what}, and this machine has {shown(has)}: choose a larger one by"
                " labels in runs_on, or request less"
            )


def _lowered(own: LockAmount, given: LockAmount) -> Iterator[str]:
    for what, wants, most, setting, shown in (
        ("memory", own.memory_bytes, given.memory_bytes, "KICI_JOB_MEMORY", _memory),
        ("cpus", own.cpu_millis, given.cpu_millis, "KICI_JOB_CPUS", _cores),
    ):
        if wants is not None and most is not None and wants > most:
            yield f"the job's limit of {shown(wants)} ({what}) is lowered to the agent's, {shown(most)} ({setting})"


def _lower(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else min(one, other)


def _memory(count: int) -> str:
    return size(count)


def _cores(millis: int) -> str:
    return "1 core" if millis == 1000 else f"{millis / 1000:g} cores"

"""Whether a job whose attempt was lost may have another one. A rule on values."""

from __future__ import annotations

from kici.engine.lockfile import Retry
from kici.orchestrator.lifecycle.limits import Limits


def next_attempt_in(*, user_code_began: bool, policy: Retry | None, used: int, limits: Limits) -> float | None:
    """Seconds until the next attempt may start; None = there is none.

    As long as no user code has begun, an attempt costs nothing and the next one follows. After that only the job's own
    `retry_on_infra` allows it: a deployment must not run twice because a machine died. `used` counts the lost one.
    """
    if used >= limits.max_attempts:
        return None
    if policy is not None and used < policy.attempts:
        return delay_s(policy, used) if user_code_began else 0.0
    return None if user_code_began else 0.0


def starts_by_itself(*, policy: Retry | None, used: int, limits: Limits) -> bool:
    """What a dispatch tells its agent: if this attempt falls silent in the midst of user code, another one starts."""
    return next_attempt_in(user_code_began=True, policy=policy, used=used, limits=limits) is not None


def delay_s(policy: Retry, used: int) -> float:
    delay = policy.delay_ms * (2 ** (used - 1) if policy.backoff == "exponential" else 1)
    return min(delay, policy.max_delay_ms) / 1000

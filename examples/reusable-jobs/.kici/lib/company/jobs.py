"""A factory: what all services have in common stands here, what differs comes as arguments."""

from collections.abc import Sequence

from kici import Job, Retry, job
from kici.sdk.steps import StepLike

from lib.company.steps import pack, unit_tests


def python_service(name: str, *, extra: Sequence[StepLike] = ()) -> Job[None]:
    """Tests of a service below `services/`, with steps of its own after them, and its package as an artifact."""
    return job(
        f"service-{name}",
        runs_on="linux",
        env={"SERVICE": name},
        timeout="20m",
        retry_on_infra=Retry(2),
        steps=[unit_tests, *extra, pack],
    )

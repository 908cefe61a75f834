from __future__ import annotations

import pytest

from kici.agent import told
from kici.agent.errors import TransferFailed
from kici.agent.job_api import JobApi
from kici.wire.agent import Checkout, Dispatch
from tests.support.web import Web

VALUE = "tok-9f8e7d6c5b4a"
DISPATCH = Dispatch("r", "j", 2, "ci", "build", "build", Checkout("", "", ""), "", "kjt_1")
AT_ONCE = (0.0, 0.0, 0.0)


async def test_a_secret_output_goes_in_the_body_with_the_jobs_token(web: Web) -> None:
    web.authorization = "Bearer kjt_1"
    await told.hand_over(JobApi(web.url, DISPATCH), "TOKEN", VALUE + " \n")
    assert [path for _, path, _ in web.requests] == ["/api/v1/agent/jobs/j/secret-outputs/TOKEN?attempt=2"]
    assert web.artifacts == {"TOKEN#2": f"{VALUE} \n".encode()}


async def test_a_small_request_is_made_again_while_it_cannot_be_answered(web: Web) -> None:
    api = JobApi(web.url, DISPATCH)
    web.unavailable = 3
    await api.repeated("PUT", "secret-outputs/TOKEN", "not kept", content=b"x", pauses_s=AT_ONCE)
    assert len(web.requests) == 4
    web.unavailable = 4
    with pytest.raises(TransferFailed, match="not kept: not now"):
        await api.repeated("PUT", "secret-outputs/TOKEN", "not kept", content=b"x", pauses_s=AT_ONCE)


async def test_one_that_nobody_answers_fails_in_the_end_and_a_refusal_at_once(web: Web) -> None:
    nobody = JobApi("http://127.0.0.1:1", DISPATCH)
    with pytest.raises(TransferFailed, match="not kept: the orchestrator did not answer"):
        await nobody.repeated("PUT", "x", "not kept", pauses_s=AT_ONCE)
    web.authorization = "Bearer other"
    with pytest.raises(TransferFailed, match="this token opens nothing here") as refused:
        await told.hand_over(JobApi(web.url, DISPATCH), "TOKEN", VALUE)
    assert len(web.requests) == 1
    assert VALUE not in repr(refused.value)

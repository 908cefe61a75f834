from __future__ import annotations

import pytest

from kici.agent.handed_over import MAX_EVENTS, MAX_PAYLOAD_BYTES, MAX_SECRET_BYTES, HandedOver, refuse_key


def test_a_job_has_up_to_twenty_secret_outputs_and_may_change_them() -> None:
    told = HandedOver()
    for number in range(20):
        assert told.refuse_secret(f"S{number}", "value") == ""
    assert told.refuse_secret("S3", "another") == ""
    assert (
        told.refuse_secret("ONE_MORE", "hunter2") == "secret output 'ONE_MORE' was not kept: a job has up to 20 of them"
    )


def test_a_secret_output_has_up_to_64_kib_in_bytes_and_the_refusal_does_not_say_it() -> None:
    told = HandedOver()
    assert told.refuse_secret("A", "x" * MAX_SECRET_BYTES) == ""
    refusal = told.refuse_secret("B", "ü" * (MAX_SECRET_BYTES // 2 + 1))
    assert "65,538 bytes; the limit is 65,536" in refusal
    assert "ü" not in refusal


@pytest.mark.parametrize("name", ["", "1A", "A-B", "A B", "A" * 101, "A\n"])
def test_a_secret_output_has_the_name_of_a_variable(name: str) -> None:
    assert "its name is to be" in HandedOver().refuse_secret(name, "x")


def test_a_secret_output_that_is_too_short_to_be_hidden_is_refused() -> None:
    assert HandedOver().refuse_secret("PIN", "é") == (
        "secret output 'PIN' was not kept: it has 2 bytes, and with fewer than 3 it cannot be hidden in logs"
    )


def test_the_payload_of_an_event_is_json_of_up_to_64_kib() -> None:
    told = HandedOver()
    assert told.refuse_event("built", {"size": [1, None, "x"]}) == ""
    assert told.refuse_event("built", "x" * (MAX_PAYLOAD_BYTES - 2)) == ""
    assert "65,537 bytes; the limit is 65,536" in told.refuse_event("built", "x" * (MAX_PAYLOAD_BYTES - 1))
    assert "its payload is not JSON" in told.refuse_event("built", {(1, 2): object()})
    assert "its name" in told.refuse_event(" ", None)


def test_an_attempt_emits_up_to_a_hundred_events() -> None:
    told = HandedOver()
    assert not any(told.refuse_event("e", None) for _ in range(MAX_EVENTS))
    assert "up to 100" in told.refuse_event("e", None)


def test_the_key_of_a_cache_is_one_line() -> None:
    assert refuse_key("uv-linux-ü", ("uv-", "u")) == ""
    for bad in ("", " ", "a\nb", "a" * 513, "a\0"):
        assert "cannot be the key of a cache" in refuse_key(bad)
        assert "cannot be the key of a cache" in refuse_key("a", (bad,))
    assert "21 prefixes" in refuse_key("a", ("b",) * 21)

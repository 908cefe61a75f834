from __future__ import annotations

import re
from pathlib import Path

import pytest

import kici
from kici.agent.errors import SettingsInvalid
from kici.agent.sandbox.contract import Limits
from kici.agent.settings import load
from kici.settings_names import AGENT, misspelt, nearest

URL = {"KICI_ORCHESTRATOR_URL": "ws://host:4000/ws"}


def test_defaults_are_those_of_the_manual() -> None:
    settings = load(dict(URL))
    assert settings.agent_slots == 1
    assert settings.sandbox == "auto"
    assert settings.sandbox_profile == "steps"
    assert settings.sandbox_network == "host"
    assert settings.max_log_size_bytes == 10_485_760
    assert settings.agent_id == ""
    assert settings.hooks_dir is None
    assert settings.dependency_builds is False


def test_the_token_leaves_the_environment_and_is_not_shown() -> None:
    environ = URL | {"KICI_AGENT_TOKEN": "kat_0123"}
    settings = load(environ)
    assert settings.agent_token == "kat_0123"
    assert environ == URL
    assert "kat_" not in repr(settings)


def test_the_token_may_stand_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("kat_0123\n")
    assert load(URL | {"KICI_AGENT_TOKEN_FILE": str(tmp_path / "token")}).agent_token == "kat_0123"
    with pytest.raises(SettingsInvalid, match="KICI_AGENT_TOKEN_FILE"):
        load(URL | {"KICI_AGENT_TOKEN_FILE": str(tmp_path / "none")})


@pytest.mark.parametrize(
    ("given", "socket", "http"),
    [
        ("ws://host:4000", "ws://host:4000/ws", "http://host:4000"),
        ("ws://host:4000/ws", "ws://host:4000/ws", "http://host:4000"),
        ("https://ci.example/kici/", "wss://ci.example/kici/ws", "https://ci.example/kici"),
        ("wss://ci.example/kici/ws", "wss://ci.example/kici/ws", "https://ci.example/kici"),
    ],
)
def test_the_orchestrators_address_may_be_written_in_several_ways(given: str, socket: str, http: str) -> None:
    settings = load({"KICI_ORCHESTRATOR_URL": given})
    assert (settings.websocket_url, settings.http_url) == (socket, http)


@pytest.mark.parametrize(
    "wrong",
    [
        {"KICI_ORCHESTRATOR_URL": ""},
        {"KICI_ORCHESTRATOR_URL": "ftp://host"},
        {"KICI_ORCHESTRATOR_URL": "ws://user:pass@host"},
        {"KICI_SANDBOX": "maybe"},
        {"KICI_SANDBOX_PROFILE": "everything"},
        {"KICI_SANDBOX_ALLOW": "everything"},
        {"KICI_SANDBOX_NETWORK": "none"},
        {"KICI_JOB_MEMORY": "lots"},
        {"KICI_JOB_MEMORY": "4GB"},
        {"KICI_JOB_MEMORY": "1MiB"},
        {"KICI_JOB_DISK": "20GB"},
        {"KICI_JOB_DISK": "1MiB"},
        {"KICI_JOB_CPUS": "0"},
        {"KICI_JOB_CPUS": "nan"},
        {"KICI_JOB_PIDS": "3"},
        {"KICI_JOB_PIDS": "many"},
        {"KICI_AGENT_SLOTS": "0"},
        {"KICI_AGENT_SLOTS": "many"},
        {"KICI_LABELS": "gpu,KICI:os:linux"},
        {"KICI_LOG_LEVEL": "loud"},
    ],
)
def test_a_value_that_cannot_be_used_is_refused_by_its_name(wrong: dict[str, str]) -> None:
    with pytest.raises(SettingsInvalid, match=next(iter(wrong))):
        load(URL | wrong)


@pytest.mark.parametrize(
    ("given", "address"),
    [
        ("9100", ("127.0.0.1", 9100)),
        ("0.0.0.0:9100", ("0.0.0.0", 9100)),
        ("[::1]:9100", ("::1", 9100)),
    ],
)
def test_the_endpoints_are_off_and_on_loopback_unless_an_address_is_given(given: str, address: tuple[str, int]) -> None:
    assert load(dict(URL)).agent_http is None
    assert load(URL | {"KICI_AGENT_HTTP": given}).agent_http == address


@pytest.mark.parametrize("given", ["host", "host:", "0", "70000", "-1", "a:b"])
def test_an_address_without_a_port_is_refused(given: str) -> None:
    with pytest.raises(SettingsInvalid, match="KICI_AGENT_HTTP"):
        load(URL | {"KICI_AGENT_HTTP": given})


def test_every_variable_of_the_agent_has_an_effect_and_stands_in_the_manual() -> None:
    """None is only parsed: somewhere beside the settings its value is used."""
    root = Path(kici.__file__).parent
    code = "".join(path.read_text() for path in (root / "agent").rglob("*.py") if path.name != "settings.py")
    manual = "".join(page.read_text() for page in (root.parents[1] / "docs/operator").glob("*.md"))
    used_there = {"agent_token_file": "agent_token", "orchestrator_url": "websocket_url"}
    used_there |= dict.fromkeys(("job_memory", "job_cpus", "job_pids"), "limits")
    used_there |= dict.fromkeys(("sandbox_image", "sandbox_pull"), "container")
    for variable in AGENT:
        name = variable.removeprefix("KICI_").lower()
        assert re.search(rf"settings\.{used_there.get(name, name)}\b", code), variable
        assert f"`{variable}`" in manual, variable


def test_labels_are_trimmed_and_empty_ones_dropped() -> None:
    assert load(URL | {"KICI_LABELS": " gpu, big ,,gpu"}).labels == ("gpu", "big")


def test_a_misspelt_variable_is_told_with_the_nearest_name() -> None:
    present = ["KICI_LABLES", "KICI_AGENT_SLOT", "KICI_ADMIN_TOKEN", "KICI_DATABASE_URL", "PATH", "KICI_LABELS"]
    assert misspelt(present, AGENT) == [("KICI_AGENT_SLOT", "KICI_AGENT_SLOTS"), ("KICI_LABLES", "KICI_LABELS")]


def test_a_name_that_is_far_from_all_has_no_nearest() -> None:
    assert nearest("KICI_SOMETHING", AGENT) is None
    assert nearest("KICI_X", []) is None


def test_limits_of_a_job_are_sizes_and_numbers() -> None:
    given = {"KICI_JOB_MEMORY": "4GiB", "KICI_JOB_CPUS": "1.5", "KICI_JOB_PIDS": "2000"}
    assert load(URL | given).limits == Limits(memory_bytes=4 * 1024**3, cpus=1.5, pids=2000)
    assert load(URL | {"KICI_JOB_MEMORY": "134217728"}).limits == Limits(memory_bytes=128 * 1024**2)
    assert load(dict(URL)).limits == Limits()
    assert load(dict(URL)).job_disk is None
    assert load(URL | {"KICI_JOB_DISK": "20GiB"}).job_disk == 20 * 1024**3


def test_a_work_directory_that_podman_cannot_mount_is_refused_at_the_start() -> None:
    odd = URL | {"KICI_WORK_DIR": "/srv/a:b", "KICI_SANDBOX": "bubblewrap"}
    assert load(odd).work_dir == Path("/srv/a:b")
    with pytest.raises(SettingsInvalid, match="KICI_WORK_DIR is '/srv/a:b': podman cannot mount"):
        load(odd | {"KICI_SANDBOX": "container"})


def test_there_are_no_more_slots_than_users_for_them() -> None:
    assert load(URL | {"KICI_AGENT_SLOTS": "475"}).agent_slots == 475
    with pytest.raises(SettingsInvalid, match="KICI_AGENT_SLOTS is 476: an agent has at most 475 slots"):
        load(URL | {"KICI_AGENT_SLOTS": "476"})

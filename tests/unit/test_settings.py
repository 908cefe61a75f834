from __future__ import annotations

from pathlib import Path

import pytest

from kici import settings_names
from kici.orchestrator.settings import Settings, SettingsError, load


def test_without_variables_the_defaults_hold_and_nothing_is_told() -> None:
    assert load({"PATH": "/bin", "HOME": "/root"}) == (Settings(), [])


def test_each_kind_of_value_is_read() -> None:
    settings, told = load(
        {
            "KICI_PORT": " 8080 ",
            "KICI_LISTEN_FD": "3",
            "KICI_AUTO_MIGRATE": "false",
            "KICI_HEARTBEAT_S": "0.5",
            "KICI_DATA_DIR": "/data",
            "KICI_STORAGE_FS_PATH": "/objects",
            "KICI_LOG_LEVEL": "debug",
        }
    )
    assert told == []
    assert (settings.port, settings.listen_fd, settings.auto_migrate, settings.heartbeat_s) == (8080, 3, False, 0.5)
    assert (settings.data_dir, settings.storage_fs_path) == (Path("/data"), Path("/objects"))


def test_an_empty_variable_is_as_good_as_none() -> None:
    assert load({"KICI_PORT": "", "KICI_DATA_DIR": " ", "KICI_LISTEN_FD": ""})[0] == Settings()


@pytest.mark.parametrize(
    ("variable", "value", "sentence"),
    [
        ("KICI_PORT", "http", "KICI_PORT: 'http' is not a whole number"),
        ("KICI_PORT", "-1", "KICI_PORT: '-1' is negative"),
        ("KICI_PORT", "70000", "KICI_PORT: a port is a number up to 65535"),
        ("KICI_HEARTBEAT_S", "soon", "KICI_HEARTBEAT_S: 'soon' is not a number"),
        ("KICI_HEARTBEAT_S", "inf", "KICI_HEARTBEAT_S: 'inf' is not a number of seconds"),
        ("KICI_POLL_S", "0", "KICI_POLL_S must be more than 0"),
        ("KICI_RECOVERY_S", "30", "KICI_RECOVERY_S must be more than twice KICI_SILENT_S"),
        ("KICI_DATABASE_POOL_SIZE", "3", "KICI_DATABASE_POOL_SIZE must be at least 4"),
        ("KICI_SILENT_S", "6", "KICI_SILENT_S must be at least twice KICI_HEARTBEAT_S"),
        ("KICI_AUTO_MIGRATE", "yes", "KICI_AUTO_MIGRATE: 'yes' is neither `true` nor `false`"),
        ("KICI_STORAGE_TYPE", "gcs", "KICI_STORAGE_TYPE: 'gcs' is neither `filesystem` nor `s3`"),
        ("KICI_STORAGE_TYPE", "s3", "KICI_STORAGE_BUCKET is required when KICI_STORAGE_TYPE is s3"),
        ("KICI_STORAGE_FS_PATH", "objects", "KICI_STORAGE_FS_PATH must be an absolute path"),
        ("KICI_ARTIFACTS_PER_RUN", "0", "KICI_ARTIFACTS_PER_RUN must be more than 0"),
        ("KICI_ARTIFACT_QUOTA_BYTES", "1000", "KICI_ARTIFACT_MAX_BYTES: one artifact could be larger (5,368,709,120"),
        ("KICI_LOG_LEVEL", "loud", "KICI_LOG_LEVEL: 'loud' is none of debug, info"),
        ("KICI_BASE_PATH", "kici", "KICI_BASE_PATH must begin with /"),
    ],
)
def test_a_bad_value_is_told_with_the_name_of_its_variable(variable: str, value: str, sentence: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load({variable: value})
    assert sentence in str(caught.value)


def test_all_bad_values_are_told_at_once() -> None:
    with pytest.raises(SettingsError, match=r"KICI_PORT: .*; KICI_HEARTBEAT_S: "):
        load({"KICI_PORT": "x", "KICI_HEARTBEAT_S": "y"})


@pytest.mark.parametrize("mode", ["platform", "hybrid", "worker"])
def test_the_modes_of_the_hosted_relay_are_refused_with_a_sentence(mode: str) -> None:
    with pytest.raises(SettingsError, match="needs the hosted relay, which kici does not have"):
        load({"KICI_MODE": mode})


def test_a_database_url_of_another_kind_is_refused_without_repeating_its_password() -> None:
    with pytest.raises(SettingsError) as caught:
        load({"KICI_DATABASE_URL": "mysql://kici:hunter2@db/kici"})
    assert "KICI_DATABASE_URL" in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_no_secret_stands_in_the_text_of_the_settings() -> None:
    settings, _ = load({"KICI_SECRET_KEY": "hunter2", "KICI_BOOTSTRAP_ADMIN_TOKEN": "hunter2"})
    assert "hunter2" not in repr(settings)


@pytest.mark.parametrize(
    ("variable", "sentence"),
    [
        ("KICI_HEARTBEET_S", "KICI_HEARTBEET_S is unknown: is KICI_HEARTBEAT_S meant?"),
        ("KICI_DATABSE_URL", "KICI_DATABSE_URL is unknown: is KICI_DATABASE_URL meant?"),
        ("KICI_FROBNICATE", "KICI_FROBNICATE is unknown, and has no effect"),
        ("KICI_QUEUE_MAX_DEPTH", "KICI_QUEUE_MAX_DEPTH has no effect: this version does not have what it sets"),
        ("KICI_CLUSTER_PEERS", "KICI_CLUSTER_PEERS has no effect: this version does not have what it sets"),
    ],
)
def test_a_variable_that_is_not_read_is_told_with_the_nearest_name(variable: str, sentence: str) -> None:
    assert load({variable: "1"}) == (Settings(), [sentence])


@pytest.mark.parametrize(
    "variable",
    [
        "KICI_ADMIN_URL",
        "KICI_ADMIN_TOKEN",
        "KICI_AGENT_TOKEN",
        "KICI_AGENT_ENV_PATH",
        "KICI_TEST_DATABASE_URL",
        "KICI_SANDBOX",
        "KICI_SANDBOX_PROFILE",
        "KICI_SANDBOX_ALLOW",
        "KICI_SANDBOX_NETWORK",
        "KICI_ORCHESTRATOR_URL",
        "KICI_WORK_DIR",
        "KICI_CLUSTER_ROLE",
        "KICI_CONFIG_DIR",
        "SOMETHING_ELSE",
    ],
)
def test_variables_of_other_programs_may_stand_beside_ours(variable: str) -> None:
    assert load({variable: "1"}) == (Settings(), [])


def test_the_long_spelling_is_read_and_the_short_one_wins() -> None:
    assert load({"KICI_SERVER_PORT": "5000"})[0].port == 5000
    assert load({"KICI_SERVER_PORT": "5000", "KICI_PORT": "6000"})[0].port == 6000
    assert set(settings_names.ALIASES.values()) <= {f"KICI_{name.upper()}" for name in Settings.__struct_fields__}

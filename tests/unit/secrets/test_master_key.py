from __future__ import annotations

import base64
from pathlib import Path

import pytest

from kici.orchestrator.secrets.errors import MasterKeyError
from kici.orchestrator.secrets.master_key import load_key_ring, parse_key
from kici.orchestrator.settings import Settings

KEY = bytes(range(32))


@pytest.mark.parametrize(
    "text", [KEY.hex(), KEY.hex().upper() + "\n", base64.b64encode(KEY).decode(), f" {KEY.hex()} "]
)
def test_a_key_is_hex_or_base64(text: str) -> None:
    assert parse_key(text, "here") == KEY


@pytest.mark.parametrize(
    "text", ["", "abc", KEY.hex()[:-1], KEY.hex() + "00", base64.b64encode(KEY[:31]).decode(), "é"]
)
def test_anything_else_is_refused_without_being_shown(text: str) -> None:
    with pytest.raises(MasterKeyError, match="openssl rand") as refused:
        parse_key(text, "KICI_SECRET_KEY")
    assert not text or text not in str(refused.value)


def test_a_key_file_is_read_if_nobody_else_can_read_it(tmp_path: Path) -> None:
    file = tmp_path / "master.key"
    file.write_text(KEY.hex() + "\n")
    file.chmod(0o644)
    with pytest.raises(MasterKeyError, match="chmod 600"):
        load_key_ring(Settings(secret_key_file=file))
    file.chmod(0o600)
    ring = load_key_ring(Settings(secret_key_file=file))
    assert ring.open("o", "s", "k", load_key_ring(Settings(secret_key=KEY.hex())).seal("o", "s", "k", b"v"), 1) == b"v"


def test_a_missing_key_says_what_to_set(tmp_path: Path) -> None:
    with pytest.raises(MasterKeyError, match="KICI_SECRET_KEY_FILE"):
        load_key_ring(Settings())
    with pytest.raises(MasterKeyError, match="No such file"):
        load_key_ring(Settings(secret_key_file=tmp_path / "none"))

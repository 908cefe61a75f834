"""The master key: 32 bytes, from `KICI_SECRET_KEY` or the file `KICI_SECRET_KEY_FILE`, as 64 hex digits or base64."""

from __future__ import annotations

import base64
import binascii
import re
import stat
from pathlib import Path

from kici.orchestrator.secrets.errors import MasterKeyError
from kici.orchestrator.secrets.key_ring import KEY_BYTES, KeyRing
from kici.orchestrator.settings import Settings

_HEX = re.compile(r"\A[0-9a-fA-F]{64}\Z")
_HOW = "make one with `openssl rand -hex 32`"


def load_key_ring(settings: Settings) -> KeyRing:
    """Raises `MasterKeyError`. A variable wins over a file."""
    if settings.secret_key.strip():
        return KeyRing({1: parse_key(settings.secret_key, "KICI_SECRET_KEY")})
    if settings.secret_key_file is not None:
        return KeyRing({1: parse_key(_read(settings.secret_key_file), str(settings.secret_key_file))})
    raise MasterKeyError(f"no master key: set KICI_SECRET_KEY_FILE to a file of mode 0600; {_HOW}")


def parse_key(text: str, where: str) -> bytes:
    text = text.strip()
    if _HEX.match(text):
        return bytes.fromhex(text)
    try:
        key = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if len(key) != KEY_BYTES:
        raise MasterKeyError(f"{where} holds no master key of 32 bytes in hex or base64: {_HOW}")
    return key


def _read(file: Path) -> str:
    try:
        mode = file.stat().st_mode
        text = file.read_text("ascii")
    except OSError as error:
        raise MasterKeyError(f"the master key file {file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise MasterKeyError(f"{file} holds no master key of 32 bytes in hex or base64: {_HOW}") from None
    if stat.S_IMODE(mode) & 0o077:
        raise MasterKeyError(f"others can read the master key file {file}: run `chmod 600 {file}`")
    return text

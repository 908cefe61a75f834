"""Every setting of the agent, read once from `KICI_*` variables."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from collections.abc import MutableMapping
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit, urlunsplit

import msgspec
from msgspec import Struct

from kici import settings_names
from kici.agent.errors import SettingsInvalid
from kici.agent.sandbox.choose import Mode
from kici.agent.sandbox.contract import Limits
from kici.agent.sandbox.podman import Options, Pull
from kici.agent.sandbox.seccomp import Profile
from kici.agent.sandbox.slot_users import MOST_SLOTS

_UNITS = {"": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3, "TiB": 1024**4}
_LEAST_MEMORY = 64 * 1024**2
"""The runner alone takes 30 MiB."""
FROM_ENVIRONMENT = tuple(name.removeprefix("KICI_").lower() for name in settings_names.AGENT)


class Settings(Struct, frozen=True, kw_only=True):
    orchestrator_url: str
    """`http(s)://` or `ws(s)://`, with the orchestrator's base path, with or without `/ws` at the end."""
    agent_id: str = ""
    """Empty: the one that is kept in the work directory."""
    agent_token: str = ""
    labels: tuple[str, ...] = ()
    """The operator's."""
    sandbox: Mode = "auto"
    sandbox_profile: Profile = "steps"
    """Of all jobs."""
    sandbox_allow: Profile = "steps"
    """Of those that ask for it."""
    sandbox_network: Literal["host", "isolated"] = "host"
    sandbox_image: str = ""
    """Required for `container`."""
    sandbox_pull: Pull = "missing"
    agent_slots: int = 1
    standby: bool = True
    """A runner is started ahead of its job, in each free slot."""
    job_memory: int | None = None
    """Bytes; None = no limit."""
    job_cpus: Annotated[float, msgspec.Meta(ge=0.01, le=4096)] | None = None
    job_pids: Annotated[int, msgspec.Meta(ge=16, le=4_194_304)] | None = None
    """None = `cgroups.DEFAULT_PIDS` where that can be had."""
    job_disk: int | None = None
    """Bytes that a job's directory may hold, the checkout included; None = no limit."""
    work_dir: Path = Path()
    ca_bundle: Path | None = None
    """Certificate authorities, in PEM: all that count, in place of the machine's."""
    max_log_size_bytes: int = 10_485_760
    """Of one step."""
    min_free_bytes: int = 200 * 1024 * 1024
    """With less in `work_dir` no job is taken."""
    min_free_inodes: int = 10_000
    """Likewise, where the file system counts them."""
    hooks_dir: Path | None = None
    hook_timeout_s: float = 300.0
    dependency_builds: bool = False
    """Packages of workflows without a wheel are built, which runs their code."""
    dependency_cache_bytes: int = 5 * 1024**3
    """Of installed packages of workflows, and uv's caches, together."""
    mirrors: bool = True
    """What jobs have fetched of a repository is kept for the next ones."""
    mirrors_bytes: Annotated[int, msgspec.Meta(ge=0)] = 10 * 1024**3
    """Of all mirrors together."""
    drain_s: float = 10.0
    """After SIGTERM: how long jobs may go on before they are cancelled, and then before they are killed."""
    die_with_parent: bool = False
    agent_http: tuple[str, int] | None = None
    """Where `/health`, `/ready` and `/metrics` are answered."""
    log_level: Literal["debug", "info", "warn", "warning", "error"] = "info"
    log_format: Literal["auto", "json", "plain"] = "auto"

    def __repr__(self) -> str:
        return f"Settings(agent_id={self.agent_id!r}, orchestrator_url={self.orchestrator_url!r})"

    @property
    def websocket_url(self) -> str:
        parts = urlsplit(self.orchestrator_url)
        return urlunsplit((parts.scheme.replace("http", "ws"), parts.netloc, f"{self._base_path}/ws", "", ""))

    @property
    def http_url(self) -> str:
        """Without a slash at the end."""
        parts = urlsplit(self.orchestrator_url)
        return urlunsplit((parts.scheme.replace("ws", "http"), parts.netloc, self._base_path, "", ""))

    @property
    def limits(self) -> Limits:
        return Limits(memory_bytes=self.job_memory, cpus=self.job_cpus, pids=self.job_pids)

    @property
    def container(self) -> Options:
        """The work directory is claimed by one agent at a time: what bears its name was left by one before."""
        directory = hashlib.sha256(os.fsencode(self.work_dir.resolve())).hexdigest()[:16]
        return Options(self.sandbox_image, directory, self.sandbox_pull, self.limits)

    @property
    def _base_path(self) -> str:
        return urlsplit(self.orchestrator_url).path.rstrip("/").removesuffix("/ws")


def load(environ: MutableMapping[str, str]) -> Settings:
    """Read the settings and take the token out of `environ`, so that nothing that is started later inherits it.

    Raises `SettingsInvalid`, whose message names the variable.
    """
    given = {name: environ.get(f"KICI_{name.upper()}", "").strip() for name in FROM_ENVIRONMENT}
    environ.pop("KICI_AGENT_TOKEN", None)
    values: dict[str, object] = {name: value for name, value in given.items() if value}
    _check_url(given["orchestrator_url"])
    values["agent_token"] = _token(given["agent_token"], given["agent_token_file"])
    values["labels"] = _labels(given["labels"])
    values["work_dir"] = Path(given["work_dir"] or Path(tempfile.gettempdir()) / "kici-agent").absolute()
    if given["ca_bundle"]:
        values["ca_bundle"] = Path(given["ca_bundle"]).absolute()
    if given["hooks_dir"]:
        values["hooks_dir"] = Path(given["hooks_dir"])
    if given["agent_http"]:
        values["agent_http"] = _address(given["agent_http"])
    for name in (
        "sandbox",
        "sandbox_profile",
        "sandbox_allow",
        "sandbox_network",
        "sandbox_pull",
        "log_level",
        "log_format",
    ):
        if name in values:
            values[name] = given[name].lower()
    for name in ("job_memory", "job_disk"):
        if name in values:
            values[name] = _bytes(f"KICI_{name.upper()}", given[name])
    for name in values:
        _convert({name: values[name]}, name)
    settings = msgspec.convert(values, Settings, strict=False)
    if settings.agent_slots < 1:
        raise SettingsInvalid(f"KICI_AGENT_SLOTS is {settings.agent_slots}: an agent needs at least one slot")
    if settings.agent_slots > MOST_SLOTS:
        raise SettingsInvalid(f"KICI_AGENT_SLOTS is {settings.agent_slots}: an agent has at most {MOST_SLOTS} slots")
    if settings.sandbox == "container" and ":" in str(settings.work_dir):
        raise SettingsInvalid(
            f"KICI_WORK_DIR is {str(settings.work_dir)!r}: podman cannot mount a path with a colon in it"
        )
    if not settings.hook_timeout_s > 0:
        raise SettingsInvalid(f"KICI_HOOK_TIMEOUT_S is {settings.hook_timeout_s:g}: it must be more than 0")
    return settings


def _convert(value: dict[str, object], name: str) -> None:
    """One at a time, so that the message can name the variable; the value is not repeated, it may be a secret."""
    required = {"orchestrator_url": "ws://x"}
    try:
        msgspec.convert(required | value, Settings, strict=False)
    except msgspec.ValidationError as error:
        reason = str(error).partition(" - at ")[0]
        raise SettingsInvalid(f"KICI_{name.upper()} cannot be used: {reason}") from None


def _check_url(url: str) -> None:
    if not url:
        raise SettingsInvalid("KICI_ORCHESTRATOR_URL is not set: give the orchestrator's address, like ws://host:4000")
    parts = urlsplit(url)
    if parts.scheme not in ("ws", "wss", "http", "https") or not parts.hostname:
        raise SettingsInvalid(
            f"KICI_ORCHESTRATOR_URL is {url!r}: it must start with ws://, wss://, http:// or https://"
        )
    if parts.username or parts.password:
        raise SettingsInvalid("KICI_ORCHESTRATOR_URL holds a user or password: set KICI_AGENT_TOKEN instead")


def _address(given: str) -> tuple[str, int]:
    """`host:port`, `[v6]:port`, or a port of loopback."""
    host, _, port = given.rpartition(":")
    if not port.isascii() or not port.isdigit() or not 0 < int(port) < 65_536:
        raise SettingsInvalid(f"KICI_AGENT_HTTP is {given!r}: give a port, which is of 127.0.0.1, or <host>:<port>")
    return host.removeprefix("[").removesuffix("]") or "127.0.0.1", int(port)


def _bytes(variable: str, given: str) -> int:
    found = re.fullmatch(r"([1-9][0-9]{0,14})(KiB|MiB|GiB|TiB)?", given)
    size = int(found[1]) * _UNITS[found[2] or ""] if found else 0
    if size < _LEAST_MEMORY:
        raise SettingsInvalid(f"{variable} is {given!r}: write a size like 512MiB or 4GiB, at least 64MiB")
    return size


def _token(token: str, file: str) -> str:
    if token and file:
        raise SettingsInvalid("KICI_AGENT_TOKEN and KICI_AGENT_TOKEN_FILE are both set: keep one")
    if not file:
        return token
    try:
        return Path(file).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsInvalid(f"KICI_AGENT_TOKEN_FILE cannot be read: {error}") from error


def _labels(given: str) -> tuple[str, ...]:
    labels = tuple(dict.fromkeys(label.strip() for label in given.split(",") if label.strip()))
    for label in labels:
        if label.lower().startswith("kici:"):
            raise SettingsInvalid(f"KICI_LABELS holds {label!r}: labels that start with kici: are given automatically")
    return labels

"""`init` of a job: what prepares its machine before the first step, such as toolchains."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from msgspec import Struct

from kici.sdk.caches import Cache, cache, checked_caches
from kici.sdk.durations import Duration
from kici.sdk.problems import Location, call_site, refuse
from kici.sdk.steps import SHELLS, Shell, command_name
from kici.sdk.values import Scalar, checked_duration, checked_env, checked_flag, checked_name, one_of

DEFAULT_TIMEOUT_MS = 10 * 60_000


class Setup(Struct, frozen=True, eq=False):
    """Make one by `setup`, `mise` or `uv_sync`."""

    name: str
    location: Location
    command: str
    timeout_ms: int
    env: dict[str, str]
    shell: Shell
    caches: tuple[Cache, ...]


SetupLike: TypeAlias = "str | Setup"


def setup(
    command: str,
    /,
    *,
    name: str | None = None,
    timeout: Duration = "10m",
    env: Mapping[str, Scalar] | None = None,
    shell: Shell = "bash",
    cache: Cache | Sequence[Cache] = (),
) -> Setup:
    """A command that runs in the checkout before the first step, and fails the job if it fails.

    What it writes to `$KICI_ENV` and `$KICI_PATH` counts for the `init` commands after it and for all steps. The values
    of `env` are templates.
    """
    subject = f"setup({command!r})"
    if not isinstance(command, str) or not command.strip():
        refuse(subject, "its command is empty")
        command = ":"
    if not one_of(subject, "shell", shell, SHELLS):
        shell = "bash"
    return Setup(
        name=checked_name(subject, name) if name is not None else command_name(command),
        location=call_site(),
        command=command,
        timeout_ms=checked_duration(subject, "timeout", timeout, None) or DEFAULT_TIMEOUT_MS,
        env=checked_env(subject, env),
        shell=shell,
        caches=checked_caches(subject, cache),
    )


def mise(*, timeout: Duration = "10m", cached: bool = True) -> Setup:
    """The tools that `mise.toml`, `.mise.toml` or `.tool-versions` pin. The agent needs `mise` itself.

    Their directories come to the front of `PATH`. Unless `cached` is False, `~/.local/share/mise` is a cache.
    """
    files = "mise.toml,.mise.toml,.tool-versions,mise.lock"
    kept = cache(f"mise-{{os}}-{{arch}}-{{hash:{files}}}", paths="~/.local/share/mise", restore="mise-{os}-{arch}-")
    return setup(
        "command -v mise >/dev/null || { echo 'mise is not installed here: see https://mise.jdx.dev' >&2; exit 127; }\n"
        "mise install --yes\n"
        'mise bin-paths >> "$KICI_PATH"',
        name="mise",
        timeout=timeout,
        env={"MISE_YES": "1", "MISE_TRUSTED_CONFIG_PATHS": "/"},
        cache=kept if checked_flag("mise(…)", "cached", cached) else (),
    )


def uv_sync(*arguments: str, timeout: Duration = "10m", cached: bool = True) -> Setup:
    """`uv sync --locked` with more arguments, for example `uv_sync("--all-extras")`; the steps then run in `.venv`.

    Unless `cached` is False, uv's own cache is one.
    """
    kept = cache("uv-{os}-{arch}-{hash:uv.lock}", paths="~/.cache/uv", restore="uv-{os}-{arch}-")
    words = " ".join(shlex.quote(str(argument)) for argument in arguments)
    return setup(
        f"uv sync --locked {words}".rstrip() + "\n"
        'echo "VIRTUAL_ENV=$PWD/.venv" >> "$KICI_ENV"\n'
        'echo "$PWD/.venv/bin" >> "$KICI_PATH"',
        name="uv sync",
        timeout=timeout,
        cache=kept if checked_flag("uv_sync(…)", "cached", cached) else (),
    )


def checked_init(subject: str, value: object) -> tuple[Setup, ...]:
    """One or several; text is a command. Two of one name get numbers."""
    several = value if isinstance(value, (list, tuple)) else () if value is None or value is False else (value,)
    found: list[Setup] = []
    for one in several:
        if isinstance(one, str) and one.strip():
            found.append(setup(one))
        elif isinstance(one, Setup):
            found.append(one)
        elif one in (mise, uv_sync, setup):
            refuse(subject, f"init: {one.__name__} is a function, call it: {one.__name__}(…)")
        else:
            refuse(subject, f"init: {one!r} is no set-up: write a command, setup(…), mise() or uv_sync()")
    return tuple(found)

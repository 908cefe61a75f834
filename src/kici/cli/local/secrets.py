"""`.kici/.secrets`: the secrets of local runs.

```
# for all jobs
NPM_TOKEN=abc

[production]
# only for jobs of this environment
DEPLOY_TOKEN="with blanks "
```
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from kici.errors import KiciError

PATH = ".kici/.secrets"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class SecretsInvalid(KiciError):
    code = "secrets_invalid"
    status = 422


class LocalSecrets(Struct, frozen=True):
    everywhere: Mapping[str, str] = {}
    environments: Mapping[str, Mapping[str, str]] = {}

    def __repr__(self) -> str:
        return f"LocalSecrets({', '.join(sorted(self.everywhere))})"

    def of(self, environment: str) -> dict[str, str]:
        """Of a job with this environment; empty = none."""
        return {**self.everywhere, **self.environments.get(environment, {})}

    def overridden(self, given: Mapping[str, str]) -> LocalSecrets:
        """With what the command line gives, which wins in every environment."""
        return LocalSecrets(
            {**self.everywhere, **given}, {name: {**one, **given} for name, one in self.environments.items()}
        )

    @property
    def values(self) -> list[str]:
        several = (self.everywhere, *self.environments.values())
        return [value for one in several for value in one.values()]


def read(root: Path) -> LocalSecrets:
    """Raises `SecretsInvalid` with the line, and none of its text: it may be a secret."""
    try:
        text = (root / PATH).read_text("utf-8")
    except FileNotFoundError:
        return LocalSecrets()
    except (OSError, UnicodeDecodeError) as error:
        raise SecretsInvalid(f"{PATH} cannot be read: {error.__class__.__name__}") from None
    return parse(text)


def everywhere(root: Path, given: Mapping[str, str] = {}) -> Mapping[str, str]:
    """Those that every job has; what the command line gives wins. Raises `SecretsInvalid`."""
    return read(root).overridden(given).everywhere


def parse(text: str) -> LocalSecrets:
    everywhere: dict[str, str] = {}
    environments: dict[str, dict[str, str]] = {}
    current = everywhere
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        if line.startswith("[") and line.endswith("]") and line[1:-1].strip():
            current = environments.setdefault(line[1:-1].strip(), {})
            continue
        name, equals, value = line.partition("=")
        name = name.strip()
        if not equals or not _NAME.fullmatch(name):
            raise SecretsInvalid(f"{PATH}, line {number}: write NAME=value, or [environment]")
        current[name] = _unquoted(value.strip())
    return LocalSecrets(everywhere, environments)


def _unquoted(value: str) -> str:
    if len(value) >= 2 and value[0] == value[-1] and value[0] in "'\"":
        return value[1:-1]
    return value

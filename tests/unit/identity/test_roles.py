from __future__ import annotations

import pytest

from kici.orchestrator.identity.roles import PERMISSIONS, ROLES, may


def test_an_owner_may_everything_and_an_unknown_role_nothing() -> None:
    assert all(may("owner", permission) for permission in PERMISSIONS)
    assert not any(may("janitor", permission) for permission in PERMISSIONS)


def test_an_admin_may_neither_make_tokens_nor_touch_keys_or_schema() -> None:
    assert PERMISSIONS - ROLES["admin"] == {"token.manage", "key.rotate", "db.migrate", "maintenance.purge"}


@pytest.mark.parametrize("permission", sorted(ROLES["auditor"]))
def test_an_auditor_only_reads(permission: str) -> None:
    assert permission.endswith(".read")
    assert permission != "secret.read"


def test_every_roles_permissions_exist() -> None:
    assert all(permissions <= PERMISSIONS for permissions in ROLES.values())

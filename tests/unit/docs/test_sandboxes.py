"""The page on sandboxes names a test for each row, and the calls that the filter refuses."""

from __future__ import annotations

import errno
import re
from pathlib import Path
from typing import get_args

from kici.agent.sandbox import user_namespace
from kici.agent.sandbox.choose import Mode
from kici.agent.sandbox.seccomp import ARCHITECTURES, IMAGE_BUILD_MAY, REFUSED, REFUSED_IOCTLS
from kici.agent.sandbox.slot_users import FIRST_UID, SLOTS

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "operator" / "sandboxes.md").read_text()


def section(title: str) -> str:
    return PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]


def rows(title: str) -> list[list[str]]:
    lines = [line for line in section(title).splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]


def test_every_row_names_tests_that_exist() -> None:
    protections = rows("What is kept from a job")
    assert len(protections) > 15
    for row in protections:
        assert re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", row[-1]), f"no test in: {row}"
    for path, name in re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE):
        assert f"def {name}(" in (ROOT / path).read_text(), f"{path} has no {name}"


def test_the_refused_calls_are_those_of_the_filter() -> None:
    told: dict[str, int] = {}
    for error, calls in rows("System calls that are refused"):
        code = {"EPERM": errno.EPERM, "ENOSYS": errno.ENOSYS}[error.split("`")[1]]
        told |= dict.fromkeys(re.findall(r"`(\w+)`", calls), code)
    assert told == REFUSED
    text = section("System calls that are refused")
    assert all(f"`{name}`" in text for name in REFUSED_IOCTLS)
    assert all(machine in text.replace("x86-64", "x86_64") for machine in ARCHITECTURES)
    assert all(f"`{name}`" in section("Image builds") for name in IMAGE_BUILD_MAY)


def test_every_value_of_the_setting_is_told_and_the_numbers_are_right() -> None:
    assert set(re.findall(r"^\| (`\w+`(?:, `\w+`)?)", PAGE, re.MULTILINE)) >= {
        "`bubblewrap`, `true`",
        "`none`, `false`",
    }
    assert all(f"`{mode}`" in PAGE for mode in get_args(Mode))
    assert f"{FIRST_UID:,} to {FIRST_UID + SLOTS - 1:,}" in PAGE
    assert f"{user_namespace.USERS:,} from {user_namespace.FIRST:,}" in section("Image builds")

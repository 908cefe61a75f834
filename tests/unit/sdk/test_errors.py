"""What a failed command says of itself."""

from __future__ import annotations

import pytest

from kici.sdk.errors import CommandFailed


@pytest.mark.parametrize(
    ("argv", "shown"),
    [
        (("bash", "-euo", "pipefail", "-c", "make  all\nmake test"), "make all make test"),
        (("sh", "-eu", "-c", "make"), "make"),
        (("buildah", "build", "."), "buildah build ."),
        (("python3", "-c", "print(1)"), "python3 -c print(1)"),
        ((), "the command"),
        (("bash", "-euo", "pipefail", "-c", "echo " + "x" * 200), "echo " + "x" * 114 + "…"),
    ],
)
def test_a_failed_command_is_named_as_its_author_wrote_it(argv: tuple[str, ...], shown: str) -> None:
    assert str(CommandFailed(argv, 2, "")) == f"{shown} failed: exit code 2"

from __future__ import annotations

import pytest

from kici.forges.contract import ForgeError
from kici.forges.registry import forge_of


def test_an_unknown_forge_is_told_with_those_that_exist() -> None:
    with pytest.raises(ForgeError, match="generic, github, internal"):
        forge_of("gitbucket")

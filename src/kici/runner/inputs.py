"""`ctx.inputs_as`: the texts that came with the event, as the author's class."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import msgspec

from kici.engine import inputs
from kici.engine.errors import InputError
from kici.lowering.inputs import lowered_inputs
from kici.sdk.errors import InputInvalid
from kici.sdk.problems import call_site

T = TypeVar("T")


def typed_inputs(of: type[T], given: Mapping[str, str]) -> T:
    """Raises `InputInvalid`, or `DefinitionError` for a class that no trigger would take."""
    wanted = lowered_inputs(of, "ctx.inputs_as(…)", call_site())
    try:
        values = inputs.coerce(wanted or {}, given, others=True)
        return msgspec.convert(values, of)
    except (InputError, msgspec.ValidationError) as error:
        raise InputInvalid(f"{of.__name__}: {error}") from error

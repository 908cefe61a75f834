"""A class of typed inputs → what the lock file says of each. The runner reads the same class again."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import inspect

from kici.engine import inputs
from kici.engine.errors import EngineError
from kici.engine.globs import compile_regex
from kici.engine.lock_triggers import Inputs, LockInput
from kici.sdk.problems import Location, refuse

_TAKEN = "take text, int, float, bool, an Enum, a Literal, one of these or None, and msgspec.Meta bounds"


class _Unfit(Exception):
    """Why a field cannot be an input."""


def lowered_inputs(of: type[Any] | None, subject: str, where: Location) -> Inputs | None:
    """None if there is no class. What is wrong with a field is refused by its name."""
    if of is None:
        return None
    if not (dataclasses.is_dataclass(of) or issubclass(of, msgspec.Struct)):
        refuse(subject, f"inputs: {of.__name__} is neither a dataclass nor a msgspec.Struct", where)
        return None
    found = {}
    try:
        described = list(_fields(of))
    except (TypeError, NameError) as error:
        refuse(subject, f"inputs: {of.__name__} cannot be read: {error}", where)
        return None
    for name, field in described:
        try:
            found[name] = _lowered(field)
        except _Unfit as error:
            refuse(subject, f"inputs: {of.__name__}.{name} {error}", where)
    return found


def _fields(of: type[Any]) -> Iterator[tuple[str, inspect.Field]]:
    described = inspect.type_info(of)
    assert isinstance(described, (inspect.DataclassType, inspect.StructType))
    for field in described.fields:
        yield field.encode_name, field


def _lowered(field: inspect.Field) -> LockInput:
    default: Any = None
    required = field.required
    if field.default is not msgspec.NODEFAULT:
        default = field.default
    elif field.default_factory is not msgspec.NODEFAULT:
        default = field.default_factory()
    if isinstance(default, enum.Enum):
        default = default.value
    described, meta = field.type, inspect.Metadata
    description = None
    if isinstance(described, meta):
        description = (described.extra_json_schema or {}).get("description")
        described = described.type
    nullable = False
    if isinstance(described, inspect.UnionType):
        others = [one for one in described.types if not isinstance(one, inspect.NoneType)]
        nullable = len(others) < len(described.types)
        if len(others) != 1:
            raise _Unfit(f"may be of several types: {_TAKEN}")
        described = others[0]
        if isinstance(described, meta):
            description = description or (described.extra_json_schema or {}).get("description")
            described = described.type
    one = _typed(described)
    one = msgspec.structs.replace(one, required=required, default=default, nullable=nullable, description=description)
    _check(one)
    return one


def _typed(described: inspect.Type) -> LockInput:
    match described:
        case inspect.StrType():
            return LockInput(
                "string",
                min_length=described.min_length,
                max_length=described.max_length,
                pattern=described.pattern,
            )
        case inspect.BoolType():
            return LockInput("boolean")
        case inspect.IntType() | inspect.FloatType():
            return LockInput(
                "integer" if isinstance(described, inspect.IntType) else "number",
                ge=described.ge,
                gt=described.gt,
                le=described.le,
                lt=described.lt,
                multiple_of=described.multiple_of,
            )
        case inspect.EnumType():
            return _choice([member.value for member in described.cls])
        case inspect.LiteralType():
            return _choice(list(described.values))
        case _:
            name = type(described).__name__.removesuffix("Type").lower()
            raise _Unfit(f"is of the type {name}: {_TAKEN}")


def _choice(values: list[Any]) -> LockInput:
    kinds = {type(value) for value in values}
    kind = {str: "string", int: "integer"}.get(kinds.pop()) if len(kinds) == 1 else None
    if kind is None:
        raise _Unfit("has values that are not all texts or all whole numbers")
    return LockInput(kind, choices=tuple(values))


def _check(one: LockInput) -> None:
    try:
        if one.pattern is not None:
            compile_regex(one.pattern)
        if not one.required:
            inputs.check("its default", one, one.default)
    except EngineError as error:
        raise _Unfit(f"cannot be an input: {error}") from error

"""What steps return: its JSON Schema for the lock file, and the way to data and back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import PurePath
from types import NoneType, SimpleNamespace
from typing import Any, get_type_hints

import msgspec

from kici.sdk.errors import DefinitionError, OutputInvalid


def return_type(function: Callable[..., Any]) -> Any:
    """The annotation of what the function returns; `Any` without one, `NoneType` for None.

    Raises `DefinitionError` if it cannot be resolved.
    """
    annotation = _annotations(function).get("return", Any)
    scope = getattr(function, "__globals__", {})
    # Only this annotation is resolved: the others may name things that are imported for type checkers alone.
    alone = SimpleNamespace(__annotations__={"return": annotation})
    try:
        return get_type_hints(alone, scope, include_extras=True)["return"]
    except (NameError, AttributeError, SyntaxError, TypeError) as error:
        name = getattr(function, "__name__", "the function")
        raise DefinitionError(
            f"what {name} returns cannot be resolved ({error}): define or import its type at the module's top level"
        ) from error


def schema(annotation: Any) -> dict[str, Any] | None:
    """JSON Schema of a return annotation; None for a function that returns nothing.

    Dataclasses, msgspec Structs, TypedDicts, NamedTuples, enums, scalars, dates, paths and containers of these. Raises
    `DefinitionError` for a type that has no JSON form.
    """
    if annotation in (None, NoneType):
        return None
    try:
        return msgspec.json.schema(annotation, schema_hook=_path_schema)
    except (TypeError, RuntimeError, NameError, ValueError) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0].rstrip(".")
        raise DefinitionError(
            f"{shown(annotation)} cannot be recorded as an output ({reason}): return a dataclass, a msgspec Struct,"
            " a TypedDict, a scalar or a container of these"
        ) from error


def to_data(value: Any, annotation: Any) -> Any:
    """What JSON can hold of a returned value, validated. Raises `OutputInvalid` with the field's path."""
    try:
        # Through JSON, so that what is checked is what the next job will get: nan, for example, is null there.
        data = msgspec.json.decode(msgspec.json.encode(value, enc_hook=_from_path))
        msgspec.convert(data, annotation, str_keys=True, dec_hook=_to_path)
        return data
    except (msgspec.ValidationError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise OutputInvalid(f"what it returned is not {shown(annotation)}: {error}") from error


def from_data(data: Any, annotation: Any) -> Any:
    """The value that `to_data` was given, as its annotation says. Raises `OutputInvalid`."""
    try:
        return msgspec.convert(data, annotation, str_keys=True, dec_hook=_to_path)
    except (msgspec.ValidationError, TypeError, ValueError) as error:
        raise OutputInvalid(f"what was recorded is not {shown(annotation)}: {error}") from error


def shown(annotation: Any) -> str:
    """A type as people write it."""
    if annotation in (None, NoneType):
        return "None"
    return annotation.__qualname__ if type(annotation) is type else str(annotation)


def _annotations(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return dict(function.__annotations__)
    except NameError:  # Python ≥ 3.14 evaluates all of them at once, also those for type checkers alone
        from annotationlib import Format, get_annotations  # type: ignore[import-not-found, unused-ignore]

        return dict(get_annotations(function, format=Format.FORWARDREF))
    except AttributeError:  # a functools.partial, an object with __call__
        return {}


def _path_schema(kind: type) -> dict[str, Any]:
    if issubclass(kind, PurePath):
        return {"type": "string", "format": "path"}
    raise TypeError(f"{shown(kind)} has no JSON form")


def _from_path(value: Any) -> Any:
    if isinstance(value, PurePath):
        return value.as_posix()
    raise TypeError(f"{shown(type(value))} has no JSON form")


def _to_path(kind: type, value: Any) -> Any:
    if isinstance(value, str) and issubclass(kind, PurePath):
        return kind(value)
    raise TypeError(f"{shown(kind)} has no JSON form")

"""What other steps and jobs have returned, as a test says it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from kici.errors import KiciError
from kici.sdk.errors import NoOutput
from kici.sdk.facts import Matrix, Needed, NeededInstance, Output
from kici.sdk.jobs import Job
from kici.sdk.outputs import from_data, return_type, to_data
from kici.sdk.steps import Step

Source: TypeAlias = "Step[Any] | Job[Any] | str"
"""What has returned something. A step that several jobs have is named `(step, job)`."""
Key: TypeAlias = "Source | tuple[Source, Job[Any] | str]"
NeedGiven: TypeAlias = "str | NeededInstance | Sequence[NeededInstance]"
"""How a needed job ended; an instance, or several, if its outputs or matrix are of interest."""


class Given:
    """Raises `OutputInvalid` at once for a value that the step could not have returned."""

    def __init__(
        self,
        outputs: Mapping[Key, Any],
        outputs_all: Mapping[Key, Sequence[Any]],
        needs: Mapping[Job[Any] | str, NeedGiven],
    ) -> None:
        self._one = [(key, _returned(key, value)) for key, value in outputs.items()]
        self._all = [(key, [_output(key, one) for one in values]) for key, values in outputs_all.items()]
        self.needs = GivenNeeds({_name(job): _needed(_name(job), given) for job, given in needs.items()})

    def one(self, source: Any, job: Any) -> Any:
        return self._find("outputs", self._one, source, job)

    def all(self, source: Any, job: Any) -> list[Output[Any]]:
        return list(self._find("outputs_all", self._all, source, job))

    def _find(self, option: str, given: Sequence[tuple[Key, Any]], source: Any, job: Any) -> Any:
        fitting = [value for key, value in given if _fits(key, source, job)]
        if fitting:
            return fitting[0]
        there = ", ".join(_shown(key) for key, _ in given) or "nothing"
        raise NoOutput(f"the test does not say what {_shown(source)} has returned: {option}= has {there}")


class GivenNeeds(Mapping[Any, Needed]):
    """A `kici.sdk.facts.Needs`."""

    def __init__(self, needs: Mapping[str, Needed]) -> None:
        self._needs = needs

    def __getitem__(self, job: object, /) -> Needed:
        if _name(job) not in self._needs:
            raise KeyError(
                f"the test gives no needs of {_name(job)!r}; it gives: {', '.join(self._needs) or 'nothing'}"
            )
        return self._needs[_name(job)]

    def __iter__(self) -> Iterator[str]:
        return iter(self._needs)

    def __len__(self) -> int:
        return len(self._needs)

    def __contains__(self, job: object, /) -> bool:
        return _name(job) in self._needs


def needed(
    status: str = "success", *, matrix: Mapping[str, str] | None = None, outputs: Mapping[str, Any] | None = None
) -> NeededInstance:
    """One ended instance of a needed job, for `needs=`. `outputs`: step's name → what JSON holds of its value."""
    return NeededInstance("", status, Matrix(matrix or {}), dict(outputs or {}))


def _needed(name: str, given: NeedGiven) -> Needed:
    instances = [given] if isinstance(given, (str, NeededInstance)) else list(given)
    if not instances:
        raise KiciError(f"needs: {name!r} has no instance: write a status, or needed(…)")
    return Needed([_instance(name, one) for one in instances])


def _instance(name: str, given: str | NeededInstance) -> NeededInstance:
    if isinstance(given, str):
        return NeededInstance(name, given, Matrix({}), {})
    suffix = f" ({', '.join(given.matrix.values())})" if len(given.matrix) else ""
    return NeededInstance(given.name or name + suffix, given.status, given.matrix, given.outputs)


def _output(key: Key, value: Any) -> Output[Any]:
    """A plain value is one of an instance that succeeded."""
    return value if isinstance(value, Output) else Output(_shown(key), "success", Matrix({}), _returned(key, value))


def _returned(key: Key, value: Any) -> Any:
    source = key[0] if isinstance(key, tuple) else key
    step = source.steps[0] if isinstance(source, Job) and source.is_function else source
    if isinstance(step, Job):
        raise KiciError(f"job {step.name!r} is made of steps, and its steps have the outputs: name a step")
    if isinstance(step, str) or step.fn is None:
        return value
    annotation = return_type(step.fn)
    return value if annotation in (None, type(None)) else from_data(to_data(value, annotation), annotation)


def _fits(key: Key, source: Any, job: Any) -> bool:
    if isinstance(key, tuple):
        return _fits(key[0], source, None) and (job is None or _name(key[1]) == _name(job))
    return key is source or _name(key) == _name(source)


def _name(source: object) -> str:
    return source.name if isinstance(source, (Job, Step)) else str(source)


def _shown(key: Any) -> str:
    return " of ".join(map(_name, key)) if isinstance(key, tuple) else _name(key)

"""Steps: a function or a shell command, with its limits."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeAlias, TypedDict, TypeVar, overload

from msgspec import Struct
from msgspec.structs import force_setattr

from kici.sdk.caches import Cache, checked_caches
from kici.sdk.durations import Duration, milliseconds
from kici.sdk.hooks import OF_A_STEP, Hook, HookLike, checked_hooks
from kici.sdk.problems import Location, call_site, location_of, refuse
from kici.sdk.rules import Rule, RuleLike, checked_rules
from kici.sdk.values import (
    Scalar,
    checked_directory,
    checked_duration,
    checked_env,
    checked_flag,
    checked_name,
    one_of,
)
from kici.sdk.vocabulary import STEP_OPTIONS, check_options

if TYPE_CHECKING:
    from typing import Unpack

    from kici.sdk.context import Ctx

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

DEFAULT_TIMEOUT_MS = 30 * 60_000
MAX_ATTEMPTS = 100
Shell: TypeAlias = Literal["bash", "sh"]
SHELLS: tuple[Shell, ...] = ("bash", "sh")
_NAME_WORDS = 4
_NAME_LENGTH = 48


class Retry(Struct, frozen=True):
    """Try again after a failure. The pause after attempt n is `delay`, doubled n−1 times if exponential."""

    attempts: int
    """All of them: 1 = no retry."""
    delay: Duration = "1s"
    backoff: Literal["exponential", "fixed"] = "exponential"
    max_delay: Duration = "30s"
    when: Callable[[BaseException], bool] | None = None
    """Called with what the attempt raised: False = give up. None = always try again."""

    def __post_init__(self) -> None:
        if (
            not isinstance(self.attempts, int)
            or isinstance(self.attempts, bool)
            or not 1 <= self.attempts <= MAX_ATTEMPTS
        ):
            refuse("Retry(…)", f"attempts is {self.attempts!r}: write a whole number from 1 to {MAX_ATTEMPTS}")
            force_setattr(self, "attempts", 1)
        if not one_of("Retry(…)", "backoff", self.backoff, ("exponential", "fixed")):
            force_setattr(self, "backoff", "exponential")
        for option, default in (("delay", "1s"), ("max_delay", "30s")):
            if checked_duration("Retry(…)", option, getattr(self, option), None) is None:
                force_setattr(self, option, default)
        if self.when is not None and not callable(self.when):
            refuse("Retry(…)", f"when is {self.when!r}: write a function that takes the exception")
            force_setattr(self, "when", None)

    @property
    def delay_ms(self) -> int:
        return milliseconds(self.delay)

    @property
    def max_delay_ms(self) -> int:
        return milliseconds(self.max_delay)


class StepOptions(TypedDict, total=False):
    timeout: Duration
    """Of one attempt; 30 minutes if left out."""
    retry: int | Retry
    """`2` is short for `Retry(2)`: two attempts in all."""
    continue_on_error: bool
    """The job goes on, and can succeed, when this step fails."""
    working_directory: str
    """Where the step's commands start, below the checkout; the checkout itself if left out. The directory need not be
    there before the step begins. What a function does without `ctx.sh` is not moved."""
    shell: Shell
    """What runs the step's commands, if they do not say so themselves: `bash -euo pipefail` if left out."""
    env: Mapping[str, Scalar]
    """Environment variables of this step alone; the values are templates."""
    rules: RuleLike | Sequence[RuleLike]
    """All must say yes, or the step is skipped."""
    cache: Cache | Sequence[Cache]
    """Restored before the step; saved when it has succeeded."""
    on_cancel: HookLike
    """If the job is cancelled while the step runs."""
    cleanup: HookLike
    """After the step, however it ended, if it has begun. A failure fails the step."""


class Step(Struct, Generic[T_co], frozen=True, eq=False, kw_only=True):
    """A step whose function returns T. Make one by `step`."""

    name: str
    location: Location
    fn: Callable[[Ctx], Any] | None = None
    """None = a command."""
    command: str | None = None
    named_by_command: bool = False
    """Nobody gave it a name: two of these in one job are told apart by a number."""
    timeout_ms: int = DEFAULT_TIMEOUT_MS
    retry: Retry | None = None
    continue_on_error: bool = False
    working_directory: str | None = None
    shell: Shell = "bash"
    env: dict[str, str] = {}
    rules: tuple[Rule, ...] = ()
    caches: tuple[Cache, ...] = ()
    hooks: dict[str, Hook] = {}
    """`on_cancel` and `cleanup`."""


StepLike: TypeAlias = "str | Step[Any] | Callable[[Ctx], Any]"
"""A command, a step, or a function that becomes a step of its name."""


class StepDecorator(Protocol):
    @overload
    def __call__(self, fn: Callable[[Ctx], Coroutine[Any, Any, T]], /) -> Step[T]: ...
    @overload
    def __call__(self, fn: Callable[[Ctx], T], /) -> Step[T]: ...
    def __call__(self, fn: Any, /) -> Step[Any]: ...


@overload
def step(name: str, command: str, /, **options: Unpack[StepOptions]) -> Step[None]: ...
@overload
def step(name: str, fn: Callable[[Ctx], Coroutine[Any, Any, T]], /, **options: Unpack[StepOptions]) -> Step[T]: ...
@overload
def step(name: str, fn: Callable[[Ctx], T], /, **options: Unpack[StepOptions]) -> Step[T]: ...
@overload
def step(fn: Callable[[Ctx], Coroutine[Any, Any, T]], /) -> Step[T]: ...
@overload
def step(fn: Callable[[Ctx], T], /) -> Step[T]: ...
@overload
def step(**options: Unpack[StepOptions]) -> StepDecorator: ...
def step(*given: Any, **options: Any) -> Any:
    """A step: `@step` or `@step(timeout="5m")` on a function, `step("name", function_or_command, timeout="5m")`."""
    if not given:
        return lambda fn: _of_function(_name_of(fn), fn, options)
    if len(given) == 1 and callable(given[0]) and not options:
        return _of_function(_name_of(given[0]), given[0], options)
    if len(given) == 2 and isinstance(given[1], str):
        return _of_command(given[0], given[1], options)
    if len(given) == 2 and callable(given[1]):
        return _of_function(given[0], given[1], options)
    refuse("step(…)", 'write @step on a function, or step("name", function_or_command)')
    return _of_command("?", ":", {})


def checked_steps(subject: str, steps: object, location: Location) -> tuple[Step[Any], ...]:
    """Bring what authors write in `steps` into one form. Two unnamed commands of one name get numbers."""
    if isinstance(steps, (str, Step)) or not isinstance(steps, Sequence):
        refuse(subject, f"steps is {steps!r}: write a list")
        return ()
    found: list[Step[Any]] = []
    counts: dict[str, int] = {}
    for index, one in enumerate(steps):
        if isinstance(one, Step):
            found.append(one)
        elif isinstance(one, str) and one.strip():
            name = command_name(one)
            counts[name] = counts.get(name, 0) + 1
            numbered = name if counts[name] == 1 else f"{name} #{counts[name]}"
            found.append(Step(name=numbered, location=location, command=one, named_by_command=True))
        elif callable(one):
            found.append(_of_function(_name_of(one), one, {}))
        else:
            refuse(subject, f"steps[{index}] is {one!r}: write a command, a step or a function", location)
    return tuple(found)


def command_name(command: str) -> str:
    """A command's first words: `uv sync --locked`."""
    first = next((line for line in command.splitlines() if line.strip() and not line.lstrip().startswith("#")), command)
    words = first.split()
    name = " ".join(words[:_NAME_WORDS])
    cut = len(words) > _NAME_WORDS or len(name) > _NAME_LENGTH
    printable = "".join(character if character.isprintable() else "?" for character in name[:_NAME_LENGTH].rstrip())
    return f"{printable} …" if cut else printable


def _of_function(name: object, fn: object, options: dict[str, Any]) -> Step[Any]:
    subject = f"step {name!r}"
    if isinstance(fn, Step):
        refuse(subject, "this is a step already: use it as it is")
        return fn
    if not callable(fn):
        refuse(subject, f"{fn!r} is neither a function nor a command")
        return _of_command("?", ":", {})
    return Step(name=checked_name(subject, name), location=location_of(fn), fn=fn, **_checked_options(subject, options))


def _of_command(name: object, command: str, options: dict[str, Any]) -> Step[Any]:
    subject = f"step {name!r}"
    if not command.strip():
        refuse(subject, "its command is empty")
    return Step(
        name=checked_name(subject, name),
        location=call_site(),
        command=command,
        **_checked_options(subject, options),
    )


def _checked_options(subject: str, options: dict[str, Any]) -> dict[str, Any]:
    check_options(subject, options, StepOptions.__annotations__, STEP_OPTIONS)
    return {
        "timeout_ms": checked_duration(subject, "timeout", options.get("timeout"), DEFAULT_TIMEOUT_MS),
        "retry": checked_retry(subject, "retry", options.get("retry")),
        "continue_on_error": checked_flag(subject, "continue_on_error", options.get("continue_on_error", False)),
        "working_directory": checked_directory(subject, "working_directory", options.get("working_directory")),
        "shell": _checked_shell(subject, options.get("shell", "bash")),
        "env": checked_env(subject, options.get("env")),
        "rules": checked_rules(subject, options.get("rules")),
        "caches": checked_caches(subject, options.get("cache")),
        "hooks": checked_hooks(subject, options, OF_A_STEP),
    }


def _checked_shell(subject: str, value: object) -> Shell:
    return "sh" if one_of(subject, "shell", value, SHELLS) and value == "sh" else "bash"


def checked_retry(subject: str, option: str, value: object) -> Retry | None:
    """None for no retry."""
    if isinstance(value, int) and not isinstance(value, bool):
        value = Retry(value)
    if value is None or value is False:
        return None
    if not isinstance(value, Retry):
        refuse(subject, f"{option} is {value!r}: write a number of attempts, or Retry(…)")
        return None
    return value if value.attempts > 1 else None


def _name_of(fn: object) -> object:
    return getattr(fn, "__name__", None) or getattr(getattr(fn, "func", None), "__name__", None)

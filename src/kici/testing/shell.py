"""A shell that runs nothing: it answers the commands that a test expects, and keeps what was asked."""

from __future__ import annotations

import asyncio
import re
import shlex
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from typing import Any, Generic, TypeAlias, TypeVar

import msgspec
from msgspec import Struct

from kici.sdk.context import Result
from kici.sdk.errors import CommandFailed, OutputInvalid

T = TypeVar("T")
_TAIL_LINES = 20


class UnexpectedCommand(AssertionError):
    """The step ran a command that the test did not expect."""


class Call(Struct, frozen=True):
    """One command that was run."""

    command: str
    """What the shell got, values quoted; of a list its words, quoted where the shell would need it."""
    argv: tuple[str, ...]
    env: dict[str, str]
    """The environment that it got, the whole of it."""
    cwd: str
    """Absolute."""
    input: bytes | None = None


class Reply(Struct, frozen=True):
    stdout: str = ""
    stderr: str = ""
    exit_code: int = 0


Answer: TypeAlias = "str | int | Reply | BaseException | Callable[[Call], Answer] | Sequence[Answer]"
"""Text is standard output, a number an exit code. An exception is raised; a function is asked, and may write files.
Of a sequence each run gets the next one, the last one for ever."""


class FakeShell:
    """`FakeShell({"git describe --tags": "v1.2", re.compile("uv build"): ""})`.

    A text is the whole command (blanks and line ends count alike), a regular expression must match from its beginning;
    the first that fits answers. Anything else is an `UnexpectedCommand`, unless `default` answers it.
    """

    def __init__(
        self, answers: Mapping[str | re.Pattern[str], Answer] | None = None, *, default: Answer | None = None
    ) -> None:
        self._answers = dict(answers or {})
        self._default = default
        self._asked: dict[str | re.Pattern[str], int] = {}
        self.calls: list[Call] = []
        self.unexpected: UnexpectedCommand | None = None
        """The first one, also when the step has caught it."""

    @property
    def commands(self) -> list[str]:
        """What was run, in order."""
        return [call.command for call in self.calls]

    @property
    def unused(self) -> list[str]:
        """What was expected and never run."""
        return [_shown(key) for key in self._answers if key not in self._asked]

    def run(self, call: Call) -> Reply:
        """Raises `UnexpectedCommand`, or what the answer says."""
        self.calls.append(call)
        for key, answer in self._answers.items():
            if _fits(key, call.command):
                time = self._asked[key] = self._asked.get(key, 0) + 1
                return _reply(answer, call, time)
        if self._default is not None:
            return _reply(self._default, call, 1)
        expected = "".join(f"\n  {_shown(key)}" for key in self._answers) or "\n  nothing"
        error = UnexpectedCommand(
            f"the step ran a command that is not expected:\n  {call.command}\nexpected:{expected}"
        )
        self.unexpected = self.unexpected or error
        raise error


class FakePending(Generic[T]):
    """A `kici.Pending` that is done as soon as it is waited for."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make

    def __await__(self) -> Generator[Any, Any, T]:
        return self._now().__await__()

    def run(self) -> T:
        no_loop_here()
        return self._make()

    def _now(self) -> Coroutine[Any, Any, T]:
        async def now() -> T:
            await asyncio.sleep(0)  # others run meanwhile, as with a real command
            return self._make()

        return now()


class FakeCommand(FakePending[Result]):
    """A `kici.Command`."""

    def __init__(self, shell: FakeShell, prepare: Callable[[], Call], *, check: bool) -> None:
        super().__init__(lambda: self._result(*self._done()))
        self._shell = shell
        self._prepare = prepare
        self._check = check

    def text(self) -> FakePending[str]:
        return FakePending(self._text)

    def lines(self) -> FakePending[list[str]]:
        def lines() -> list[str]:
            text = self._text()
            return text.split("\n") if text else []

        return FakePending(lines)

    def json(self, kind: Any = Any, /) -> FakePending[Any]:
        def decoded() -> Any:
            text = self._checked(*self._done()).stdout
            try:
                return msgspec.json.decode(text, type=kind)
            except msgspec.DecodeError as error:
                raise OutputInvalid(f"what the command wrote is not the JSON that was wanted: {error}") from error

        return FakePending(decoded)

    def ok(self) -> FakePending[bool]:
        return FakePending(lambda: self._done()[1].exit_code == 0)

    def _done(self) -> tuple[Call, Reply]:
        call = self._prepare()
        return call, self._shell.run(call)

    def _result(self, call: Call, reply: Reply) -> Result:
        self._checked(call, reply)
        return Result(call.argv, reply.exit_code, 0.0)

    def _text(self) -> str:
        return self._checked(*self._done()).stdout.rstrip("\r\n")

    def _checked(self, call: Call, reply: Reply) -> Reply:
        if self._check and reply.exit_code:
            tail = "\n".join((reply.stdout + reply.stderr).splitlines()[-_TAIL_LINES:])
            raise CommandFailed(call.argv, reply.exit_code, tail)
        return reply


def command_text(argv: Sequence[str], *, listed: bool) -> str:
    """As `Call.command` has it; `listed`: the author wrote a list, so no shell reads it."""
    return shlex.join(argv) if listed else argv[-1]


def no_loop_here() -> None:
    """Raises `RuntimeError` where `.run()` would block the loop, as the runner does."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise RuntimeError("use `await` here: .run() blocks, and is for steps that are written as `def`")


def _fits(key: str | re.Pattern[str], command: str) -> bool:
    if isinstance(key, str):
        return key.split() == command.split()
    return key.match(command) is not None


def _reply(answer: Answer, call: Call, time: int) -> Reply:
    match answer:
        case Reply():
            return answer
        case str():
            return Reply(answer)
        case int():
            return Reply(exit_code=answer)
        case BaseException():
            raise answer
        case Sequence():
            if not answer:
                raise UnexpectedCommand(f"the test has no answer for {call.command!r}: its list is empty")
            return _reply(answer[min(time, len(answer)) - 1], call, time)
        case _ if callable(answer):
            return _reply(answer(call), call, time)
    raise TypeError(f"an answer is text, an exit code, a Reply, an exception, a function or a list, not {answer!r}")


def _shown(key: str | re.Pattern[str]) -> str:
    return key if isinstance(key, str) else f"/{key.pattern}/"

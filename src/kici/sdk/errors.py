"""What authors and their steps can meet."""

from __future__ import annotations

from kici.errors import KiciError

_SHOWN_CHARS = 120


class SdkError(KiciError):
    code = "sdk_error"
    status = 422


class DefinitionError(SdkError):
    """A workflow, job, step or trigger cannot be made like this. The message says what to write instead."""

    code = "definition_invalid"


class NotYet(SdkError, ImportError):
    """A name of the vocabulary that this version does not have yet."""

    code = "not_yet"


class Elsewhere(SdkError, ImportError):
    """A name that stands in another module of kici, which the message names."""

    code = "elsewhere"


class CommandFailed(SdkError):
    """A command ended with another code than 0, or ran too long."""

    code = "command_failed"

    def __init__(
        self,
        argv: tuple[str, ...],
        exit_code: int | None,
        tail: str,
        reason: str = "",
        *,
        signal: str = "",
        timed_out: bool = False,
    ) -> None:
        self.argv = argv
        """What was run; values of the template are in it as they were quoted."""
        self.exit_code = exit_code
        """None if it was killed: see the message."""
        self.tail = tail
        """The last lines that it wrote: to standard error, where that was read apart, else to either stream."""
        self.signal = signal
        """Name of the signal that killed it, or of which its shell tells (128 + n): `SIGKILL`; empty = none."""
        self.timed_out = timed_out
        ended = reason or f"exit code {exit_code}"
        super().__init__(f"{_shown(argv) or 'the command'} failed: {ended}")


class CommandInvalid(SdkError):
    """`ctx.sh` was given a template that it cannot fill safely."""

    code = "command_invalid"


class SecretNotFound(SdkError, KeyError):
    """The message names the secrets that the job has."""

    code = "secret_not_found"

    def __str__(self) -> str:
        return str(self.args[0])


class InputInvalid(SdkError):
    """The event's inputs are not what `ctx.inputs_as` was asked for."""

    code = "input_invalid"


class OtherEvent(SdkError):
    """`ctx.event_as` was asked for another kind of event than there is."""

    code = "other_event"


class NoOutput(SdkError):
    """The step or job has not returned anything (yet)."""

    code = "no_output"


class OutputsOfMany(SdkError):
    """One value was asked of a job that ran several times."""

    code = "outputs_of_many"


class OutputInvalid(SdkError):
    """What a step returned does not follow its annotation. The message has the field's path."""

    code = "output_invalid"


class WaitTimeout(SdkError):
    """`ctx.wait_for` has waited long enough. The message names how often it asked."""

    code = "wait_timeout"


def _shown(argv: tuple[str, ...]) -> str:
    """Its first words, on one line: of what a shell ran the command alone."""
    by_shell = argv[-2:-1] == ("-c",) and argv[0] in ("bash", "sh")
    words = " ".join(" ".join(argv[-1:] if by_shell else argv).split())
    return words if len(words) <= _SHOWN_CHARS else words[: _SHOWN_CHARS - 1] + "…"

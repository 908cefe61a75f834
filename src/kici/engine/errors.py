"""What the rules refuse."""

from __future__ import annotations

from kici.errors import KiciError


class EngineError(KiciError):
    code = "engine_error"
    status = 422


class LockFileError(EngineError):
    """The lock file cannot be used. The message names the field and says how to get a good one."""

    code = "lock_file_invalid"


class PatternError(EngineError):
    """A glob or a regular expression is not one."""

    code = "pattern_invalid"


class TemplateError(EngineError):
    """A template names a field that does not exist, or one that this event does not have."""

    code = "template_invalid"


class MatrixError(EngineError):
    """A matrix gives no combination, or too many."""

    code = "matrix_expansion"


class CronError(EngineError):
    """A cron expression or its time zone cannot be used."""

    code = "cron_invalid"


class PathError(EngineError):
    """A path into a payload is not one."""

    code = "path_invalid"


class InputError(EngineError):
    """Inputs that the trigger does not take. The message names each."""

    code = "input_invalid"


class EvaluationError(EngineError):
    """What the functions of a workflow gave is too large, cannot be read, or cannot be so in its run."""

    code = "evaluation_invalid"


class EventFileError(EngineError):
    """A file that is to hold an event does not."""

    code = "event_file_invalid"

"""What can go wrong on an agent. The messages reach the user's job log or the operator's terminal."""

from __future__ import annotations

import errno
from pathlib import Path

from kici.engine.failure import Reason
from kici.errors import KiciError


class AgentError(KiciError):
    code = "agent_error"


class SettingsInvalid(AgentError):
    """The agent cannot start with these settings."""

    code = "settings_invalid"


class TurnedAway(AgentError):
    """The orchestrator will not have this agent, and no retry can mend it: the process ends with this reason."""

    code = "refused"


class PreparationFailed(AgentError):
    """The job ended before any user code ran. The message is the job's error."""

    code = "preparation_failed"
    reason = Reason.PREPARATION


class PreparationTimeout(PreparationFailed):
    """The job's time was over before any user code ran."""

    reason = Reason.TIMEOUT


class DiskFull(PreparationFailed):
    code = "disk"
    reason = Reason.DISK_FULL

    def __init__(self, where: Path) -> None:
        super().__init__(f"disk: no space left in the agent's work directory {where}; free some, or set KICI_WORK_DIR")


class MirrorBroken(AgentError):
    """What is kept of a repository is not as it was: never a job's error, it is thrown away and fetched anew."""

    code = "mirror_broken"


class TransferFailed(AgentError):
    """An artifact or a job's context did not get through. The message says what the orchestrator answered."""

    code = "transfer_failed"


class NoAnswer(TransferFailed):
    """Nobody was there, or the connection ended: it may be tried again."""

    code = "no_answer"


class Damaged(TransferFailed):
    """What arrived is not what was sent once."""

    code = "damaged"


def is_disk_full(error: BaseException) -> bool:
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)

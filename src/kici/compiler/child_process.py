"""Starts the process that imports the workflows. Needs nothing but the standard library, so that it can start first.

The child imports the SDK while its parent imports everything else; then it waits for its request. It ends when its
standard input does.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

# -I without its -E: the environment is ours, and has a hash seed so that a set has the same order every time.
_PYTHON = (sys.executable, "-s", "-P", "-X", "utf8", "-c")
# Without garbage collection, which would take a fifth of its time: the process lives for a moment.
_BOOT = (
    "import gc, sys; gc.disable(); home = sys.argv.pop(); home in sys.path or sys.path.append(home);"
    "from kici.compiler.child import main; main()"
)
KEPT_VARIABLES = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "TZ", "SYSTEMROOT", "TEMP", "TMP", "USERPROFILE")


def start(root: Path) -> subprocess.Popen[bytes]:
    """For one compile of the repository at `root`. What the modules print appears on standard error."""
    return subprocess.Popen(
        [*_PYTHON, _BOOT, str(Path(__file__).resolve().parents[2])],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=root,
        env={name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ} | {"PYTHONHASHSEED": "0"},
        start_new_session=True,
    )

"""What `import kici` hands out, and what it does not load."""

from __future__ import annotations

import pkgutil
import subprocess
import sys

import pytest

import kici
from kici import sdk


@pytest.mark.parametrize(
    "module",
    ["kici.agent.main", "kici.orchestrator.app", "kici.orchestrator.main", "kici.admin.connection", "kici.cli.client"],
)
def test_programs_that_run_no_workflow_do_not_load_the_sdk(module: str) -> None:
    program = f"import sys, {module}; sys.exit(any(name.startswith('kici.sdk') for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=60).returncode == 0


def test_no_name_of_the_sdk_is_that_of_a_module() -> None:
    assert set(sdk.__all__) & {module.name for module in pkgutil.iter_modules(kici.__path__)} == set()

"""The example of docs/user/masking.md runs, and the forms of its table are hidden."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kici.agent.masking import Secrets
from tests.integration.cli.test_run_local import Repository

PAGE = (Path(__file__).parents[3] / "docs/user/masking.md").read_text()
VALUE = "p@ss'word"
FORMS = re.findall(r"^\| .* \| `(.+)` \|$", PAGE, re.MULTILINE)


def test_the_example_hides_its_token(tmp_path: Path) -> None:
    for name in ("tmp", "home", "repo", "tools"):
        (tmp_path / name).mkdir()
    repository = Repository(tmp_path / "repo", tmp_path / "tools")
    [(path, text)] = re.findall(r"^```python\n# (\S+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    repository.write(path, text)
    repository.commit()
    ran = repository.run("sign-in")
    assert ran.returncode == 0, ran.stdout
    assert "signed in with ***" in ran.stdout
    assert "tok-" not in ran.stdout


def test_the_table_has_a_form_in_each_row() -> None:
    assert len(FORMS) == 7


@pytest.mark.parametrize("form", FORMS)
def test_the_forms_of_the_table_are_hidden(form: str) -> None:
    assert Secrets([VALUE]).mask(f"x {form} y") == "x *** y"

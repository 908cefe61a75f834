from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kici.runner.environment import Environment, Written, parse


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[Environment]:
    before = dict(os.environ)
    yield Environment({"PATH": "/bin", "KEPT": "yes"}, secrets={"TOKEN"})
    os.environ.clear()
    os.environ.update(before)


def test_lines_and_blocks_give_values() -> None:
    found, problems = parse("A=1\n\n B = two words \nC<<END\nx\n y=z\n\nEND\nD=a<<b\nA=3\n")
    assert found == {"A": "3", "B": " two words ", "C": "x\n y=z\n", "D": "a<<b"}
    assert problems == []


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("A<<END\nx\n", "line 1: the value of A does not end with a line 'END'"),
        ("just words\n", "line 1 is neither NAME=value nor NAME<<END"),
        ("\n=x\n", "line 2 has no name"),
    ],
)
def test_what_is_neither_is_told_with_its_line(text: str, problem: str) -> None:
    assert parse(text) == ({}, [problem])


@given(
    st.dictionaries(
        st.from_regex(r"[A-Z_]{1,8}", fullmatch=True),
        st.text(st.characters(exclude_characters="\0\r", exclude_categories=["Cs"])),
    )
)
def test_a_block_holds_any_text(values: dict[str, str]) -> None:
    end = "END-" + "x" * (1 + max((len(value) for value in values.values()), default=0))
    text = "".join(f"{name}<<{end}\n{value}\n{end}\n" for name, value in values.items())
    assert parse(text) == (values, [])


def test_variables_and_path_go_on_and_exposed_ones_end_with_the_step(environment: Environment) -> None:
    environment.set("A", "1")
    environment.add_path("/opt/tool")
    environment.for_this_step("KEPT", "secret")
    environment.for_this_step("TOKEN", "secret")
    assert (os.environ["KEPT"], os.environ["TOKEN"]) == ("secret", "secret")
    environment.end_step()
    os.environ.pop("PYTEST_CURRENT_TEST", None)
    assert dict(os.environ) == {"PATH": "/opt/tool:/bin", "KEPT": "yes", "A": "1"}


@pytest.mark.parametrize(("name", "value"), [("", "x"), ("A=B", "x"), ("A\0", "x"), ("A", "x\0"), ("TOKEN", "x")])
def test_what_cannot_be_set_is_refused(environment: Environment, name: str, value: str) -> None:
    with pytest.raises(ValueError, match=r"cannot be set|is the name of a secret"):
        environment.set(name, value)


def test_the_first_line_of_the_path_file_is_searched_first(environment: Environment, tmp_path: Path) -> None:
    files = environment.files(str(tmp_path))
    Path(os.environ["KICI_PATH"]).write_text("/one\n/two\n")
    Path(os.environ["KICI_ENV"]).write_text("TOKEN=stolen\nB=2\n")
    said: list[str] = []
    environment.apply(files, said.append)
    assert os.environ["PATH"] == "/one:/two:/bin"
    assert os.environ["B"] == "2"
    assert "KICI_ENV" not in os.environ
    assert said == ["$KICI_ENV: TOKEN is the name of a secret of this job: use another name"]
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_the_step_has_removed_or_filled_up_is_no_disaster(environment: Environment, tmp_path: Path) -> None:
    files = environment.files(str(tmp_path))
    Path(os.environ["KICI_ENV"]).unlink()
    Path(os.environ["KICI_OUTPUT"]).write_bytes(b"A=" + b"x" * 2_000_000)
    said: list[str] = []
    assert environment.apply(files, said.append) == Written({}, "")
    assert said == ["$KICI_OUTPUT has more than 1,048,576 bytes: nothing of it is used"]

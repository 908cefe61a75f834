from __future__ import annotations

import shlex
import subprocess
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kici.runner.template import fill, fill_interpolated, quoted
from kici.sdk.errors import CommandInvalid

texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))
nasty = st.lists(
    st.sampled_from(
        ["'", '"', "`", "$(", ")", "\\", "\n", " ", ";", "&", "|", "#", "}", "{", "EOF", "*", "~", "!", "a"]
    )
).map("".join)


def bash(command: str, cwd: Path | None = None) -> bytes:
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command], stdout=subprocess.PIPE, check=True, timeout=20, cwd=cwd
    ).stdout


@settings(max_examples=60, deadline=None)
@given(texts | nasty)
def test_a_value_arrives_in_the_command_as_it_is(value: str) -> None:
    for template in (
        "printf %s {value}",
        "printf %s {value} # it's a comment",
        "echo it\\'s \"a 'b' c\" >/dev/null; printf %s {value}",
        'x=$(printf %s {value}; printf .); printf %s "${x%.}"',
        "if [[ a == {value} ]]; then :; fi; printf %s {value}",
        "cat <<'EOF' >/dev/null; printf %s {value}\nit's\nEOF\n",
        "echo $((1+2)) ${HOME:-x} >/dev/null\nprintf %s {value}",
        "case a in a) printf %s {value};; esac",
    ):
        assert bash(fill(template, {"value": value})) == value.encode()


@settings(max_examples=30, deadline=None)
@given(st.lists(texts | nasty, min_size=1))
def test_a_list_becomes_as_many_words(values: list[str]) -> None:
    out = bash(fill("printf '%s\\0' {values}", {"values": values}))
    assert out == b"".join(value.encode() + b"\0" for value in values)


pieces = st.sampled_from(
    [
        "{v}", "{v}", "{v}", "'", '"', "`", "\\", "#", " ", "\n", ";", "$(", ")", "(", "((", "))", "$((", "${x:-", "}",
        "$'", '$"', "$", "<<E", "<<'E'", "<<-E", "<<", "<<<", "<", "\nE\n", "\n\tE\n", "echo ", "case a in a) ",
        ";; esac", " case ", " esac ", "x", "=", "[[ a == ", " ]]", "[", "]", "{", "$[", "cat ", "if :; then ", " fi",
        "\\\n", "$#", "a[", "${x:", " -eq ", "-v ", "let ", "& ", "|", ">&2 ", "!",
    ]
)  # fmt: skip
payloads = st.sampled_from(
    [
        "$(touch broken)", "`touch broken`", "';touch broken;'", "\ntouch broken\n", "\nE\ntouch broken\n",
        '";touch broken;"', ")\ntouch broken\n", "a[$(touch broken)]", "\n\tE\ntouch broken\n", "}\ntouch broken\n",
        "'\ntouch broken\n'", "x'\nE\ntouch broken\n",
    ]
)  # fmt: skip


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(pieces, min_size=1, max_size=14).map("".join), payloads)
def test_no_value_becomes_code_whatever_the_template(tmp_path: Path, template: str, payload: str) -> None:
    if "{v}" not in template:
        return
    try:
        command = fill(template, {"v": payload})
    except CommandInvalid:
        return
    subprocess.run(
        ["bash", "-c", command], cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, timeout=20, check=False
    )
    assert not (tmp_path / "broken").exists(), command


@pytest.mark.parametrize(
    ("template", "place"),
    [
        ("echo '{name}'", "single quotes"),
        ('echo "{name}"', "double quotes"),
        ("echo $'{name}'", "inside"),
        ("echo `ls {name}`", "backquotes"),
        ('echo "$(ls {name})"', "double quotes"),
        ("echo a # {name}", "comment"),
        ("cat <<EOF\n{name}\nEOF\n", "here-document"),
        ("cat <<'EOF'\n{name}\nEOF\n", "here-document"),
        ("echo $(( {name} + 1 ))", "arithmetic"),
        ("echo \\{name}", "backslash"),
        ("echo a \\\n# {name}", "comment"),
        ("[[ {name} -gt 3 ]]", "evaluates"),
        ("a[{name}]=1", "evaluates"),
        ("let x=1 2>&1 {name}", "evaluates"),
        ("read -r {name}", "evaluates"),
        ("echo ${x:{name}}", "inside"),
    ],
)
def test_a_placeholder_where_quoting_does_not_protect_is_refused(template: str, place: str) -> None:
    with pytest.raises(CommandInvalid, match=place):
        fill(template, {"name": "x"})


def test_only_given_names_are_placeholders() -> None:
    command = "awk '{print $1}' a.{txt,md} ${HOME} {other} {ref}"
    assert fill(command, {"ref": "main"}) == "awk '{print $1}' a.{txt,md} ${HOME} {other} main"
    assert fill(command, {}) == command


def test_a_value_without_its_placeholder_is_refused() -> None:
    with pytest.raises(CommandInvalid, match="ref is given"):
        fill("echo hello", {"ref": "main"})
    with pytest.raises(CommandInvalid, match="variable of the shell"):
        fill("echo ${ref}", {"ref": "main"})


def test_the_name_of_an_option_cannot_be_a_placeholder() -> None:
    with pytest.raises(CommandInvalid, match="timeout"):
        fill("sleep {timeout}", {"timeout": 3})


@pytest.mark.parametrize(("value", "words"), [(3, "3"), (PurePosixPath("a b"), "'a b'"), (["a", 1], "a 1"), ([], "")])
def test_numbers_paths_and_lists_have_a_plain_form(value: object, words: str) -> None:
    assert quoted("x", value) == words


@pytest.mark.parametrize("value", [None, True, b"x", {}, "a\0b", object()])
def test_what_has_no_plain_form_is_refused(value: object) -> None:
    with pytest.raises(CommandInvalid, match="x "):
        quoted("x", value)


class Interpolation:
    def __init__(self, value: object, conversion: str | None = None) -> None:
        self.value, self.expression, self.conversion, self.format_spec = value, "name", conversion, ""


def test_the_values_of_a_t_string_are_quoted() -> None:
    assert fill_interpolated(("echo ", " end"), [Interpolation("a b")]) == "echo 'a b' end"
    with pytest.raises(CommandInvalid, match="double quotes"):
        fill_interpolated(('echo "', '"'), [Interpolation("a b")])
    with pytest.raises(CommandInvalid, match="conversions"):
        fill_interpolated(("echo ", ""), [Interpolation("a b", "r")])


def test_the_shell_reads_the_filled_command_as_the_words_that_were_meant() -> None:
    assert shlex.split(fill("deploy --ref {ref}", {"ref": "$(rm -rf /)"})) == ["deploy", "--ref", "$(rm -rf /)"]

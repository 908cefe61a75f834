from __future__ import annotations

from kici.cli.local.terminal import Hidden, JobLog


def written(hidden: Hidden, *pieces: bytes) -> list[str]:
    lines: list[str] = []
    log = JobLog(hidden, lambda text: lines.append(f"build: {text.decode()}"))
    for piece in pieces:
        log.write(piece)
    log.end()
    return lines


def test_lines_are_whole_whatever_pieces_they_come_in() -> None:
    assert written(Hidden(), b"on", b"e\ntw", b"o\n\nthree") == ["build: one", "build: two", "build: ", "build: three"]


def test_a_secret_is_hidden_also_when_it_comes_in_two_pieces() -> None:
    assert written(Hidden(["hunter2"]), b"it is hun", b"ter2!\n") == ["build: it is ***!"]


def test_a_value_that_becomes_secret_later_is_hidden_from_then_on() -> None:
    hidden = Hidden()
    lines: list[bytes] = []
    log = JobLog(hidden, lines.append)
    log.write(b"first hunter2\n")
    hidden.add("hunter2")
    log.write(b"second hunter2\n")
    log.end()
    assert lines == [b"first hunter2", b"second ***"]


def test_an_endless_line_is_cut() -> None:
    lines = written(Hidden(), b"x" * 200_000)
    assert [len(line) for line in lines] == [65_543, 65_543, 65_543, 3_399]


def test_documents_are_cleaned_as_well() -> None:
    assert Hidden(["hunter2"]).clean({"error": ["hunter2"]}) == {"error": ["***"]}
    assert Hidden().clean({"a": 1}) == {"a": 1}

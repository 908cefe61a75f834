from __future__ import annotations

from kici.agent.masking import Secrets
from kici.agent.remarks import Remarks
from kici.wire.agent import MAX_ANNOTATION_CHARS, MAX_ANNOTATIONS, MAX_SUMMARY_BYTES, Annotation


def test_a_secret_is_hidden_in_message_file_and_summary() -> None:
    remarks = Remarks(Secrets(["hunter22"]))
    remarks.annotate("warning", "the password is hunter22", "src/hunter22.py", 7)
    remarks.summarize("# hunter22\n")
    assert remarks.annotations() == (Annotation("warning", "the password is ***", "src/***.py", 7),)
    assert remarks.summary() == "# ***\n"


def test_a_value_that_is_hidden_only_later_and_one_that_comes_in_two_pieces_are_hidden() -> None:
    secrets = Secrets()
    remarks = Remarks(secrets)
    remarks.annotate("error", "token tok-12345 refused", "", 0)
    remarks.summarize("it says tok-1")
    remarks.summarize("2345, alas")
    secrets.add("tok-12345")
    assert remarks.annotations()[0].message == "token *** refused"
    assert remarks.summary() == "it says ***, alas"


def test_no_cut_leaves_the_beginning_of_a_secret() -> None:
    secret = "s" + "3cr3t" * 20
    remarks = Remarks(Secrets([secret]))
    remarks.annotate("error", "x" * (MAX_ANNOTATION_CHARS - 50) + secret, "", 0)
    assert remarks.summarize("y" * (MAX_SUMMARY_BYTES - 50) + secret + "z" * 100)
    assert "s3cr3t" not in remarks.annotations()[0].message
    assert "s3cr3t" not in remarks.summary()
    assert remarks.summary().endswith("***" + "z" * 47)


def test_what_is_beyond_the_limits_is_left_out_and_said_once() -> None:
    remarks = Remarks(Secrets())
    told = [remarks.annotate("notice", str(number), "", 0) for number in range(MAX_ANNOTATIONS + 3)]
    assert [one for one in told if one] == ["a step has up to 50 annotations: the others are left out"]
    assert len(remarks.annotations()) == MAX_ANNOTATIONS
    told = [remarks.summarize("é" * 20_000) for _ in range(4)]
    assert [one for one in told if one] == ["the summary of a step has up to 65,536 bytes: the rest is left out"]
    assert len(remarks.summary().encode()) == MAX_SUMMARY_BYTES


def test_an_unknown_level_is_a_notice_and_a_line_is_a_number_that_can_be_stored() -> None:
    remarks = Remarks(Secrets())
    remarks.annotate("catastrophe", "m", "", -5)
    remarks.annotate("error", "m", "", 10**12)
    assert [(one.level, one.line) for one in remarks.annotations()] == [("notice", 0), ("error", 2_147_483_647)]

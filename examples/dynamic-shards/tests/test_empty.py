import unittest

from words import initials, longest, words


class EmptyTest(unittest.TestCase):
    def test_an_empty_text_has_no_words(self) -> None:
        self.assertEqual(words(""), [])

    def test_an_empty_text_has_no_longest_word(self) -> None:
        self.assertEqual(longest(""), "")

    def test_an_empty_text_has_no_initials(self) -> None:
        self.assertEqual(initials(""), "")

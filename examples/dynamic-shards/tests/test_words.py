import unittest

from words import words


class WordsTest(unittest.TestCase):
    def test_blanks_part_words(self) -> None:
        self.assertEqual(words("a  b"), ["a", "b"])

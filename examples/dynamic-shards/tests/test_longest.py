import unittest

from words import longest


class LongestTest(unittest.TestCase):
    def test_the_longest_word_is_found(self) -> None:
        self.assertEqual(longest("a bcd ef"), "bcd")

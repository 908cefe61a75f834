import unittest

from slugs import slug


class SlugTest(unittest.TestCase):
    def test_words_are_joined_by_hyphens(self) -> None:
        self.assertEqual(slug("Hello, World!"), "hello-world")

    def test_accents_are_dropped(self) -> None:
        self.assertEqual(slug("Crème brûlée"), "creme-brulee")

    def test_a_long_title_is_cut_between_words(self) -> None:
        self.assertEqual(slug("one two three", max_length=8), "one-two")

    def test_a_title_without_letters_gives_nothing(self) -> None:
        self.assertEqual(slug("???"), "")

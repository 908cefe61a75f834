import unittest

from words import initials


class InitialsTest(unittest.TestCase):
    def test_initials_are_upper_case(self) -> None:
        self.assertEqual(initials("ada lovelace"), "AL")

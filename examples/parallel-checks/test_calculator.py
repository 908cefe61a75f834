import unittest

from calculator import add


class AddTest(unittest.TestCase):
    def test_two_numbers_give_their_sum(self) -> None:
        self.assertEqual(add(2, 3), 5)

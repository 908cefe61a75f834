import unittest

from shared import price


class PriceTest(unittest.TestCase):
    def test_cents_have_two_digits(self) -> None:
        self.assertEqual(price(1205), "12.05 €")

import json
import unittest

from api import offer


class OfferTest(unittest.TestCase):
    def test_an_offer_has_its_price_as_people_read_it(self) -> None:
        self.assertEqual(json.loads(offer("Tea", 350)), {"name": "Tea", "price": "3.50 €"})

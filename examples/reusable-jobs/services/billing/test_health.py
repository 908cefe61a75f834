import unittest

from services.billing import healthy


class HealthTest(unittest.TestCase):
    def test_it_is_healthy(self) -> None:
        self.assertTrue(healthy())

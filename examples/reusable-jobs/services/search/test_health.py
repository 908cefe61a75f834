import unittest

from services.search import healthy


class HealthTest(unittest.TestCase):
    def test_it_is_healthy(self) -> None:
        self.assertTrue(healthy())

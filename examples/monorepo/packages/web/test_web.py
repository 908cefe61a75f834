import unittest

from web import row


class RowTest(unittest.TestCase):
    def test_a_name_cannot_be_markup(self) -> None:
        self.assertEqual(row("<b>", 1), "<tr><td>&lt;b&gt;</td><td>0.01 €</td></tr>")

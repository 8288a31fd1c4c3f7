"""What the shop promises."""

import unittest

from shop import total


class Shop(unittest.TestCase):
    def test_a_basket_adds_up(self) -> None:
        assert total([250, 125]) == 375


if __name__ == "__main__":
    unittest.main()

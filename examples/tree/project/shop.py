"""A basket that adds up."""


def total(prices: list[int]) -> int:
    """The sum of the prices, in cents."""
    return sum(prices)

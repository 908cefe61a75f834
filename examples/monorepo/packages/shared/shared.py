"""What both packages stand on."""


def price(cents: int) -> str:
    return f"{cents // 100}.{cents % 100:02} €"

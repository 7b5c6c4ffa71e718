"""The numbers that a text names: what tests compare in place of its words."""

import re

# Digits within a name, like V100 or ResNet-32, are no numbers.
_NUMBER = re.compile(r"(?<![\w.-])-?\d+(?:\.\d+)?(?:e-?\d+)?")


def numbers_in(text: str) -> list[float]:
    """Return the numbers in a text, in their order, without their units.

    >>> numbers_in("K80 takes 1.5 s for 32 samples, 20% of ResNet-32's; off by -1e-10")
    [1.5, 32.0, 20.0, -1e-10]
    """
    return [float(number) for number in _NUMBER.findall(text)]

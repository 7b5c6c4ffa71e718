"""What is predicted where a model cannot be trusted."""

from __future__ import annotations

import numpy as np

from evenstep.core.arrays import Floats

_FAR = np.log(4.0)


def keep_near(speeds: Floats, log_speeds: Floats) -> Floats:
    """Return modelled log speeds as speeds that are at most a factor of 4 from safe ones.

    What is further away is extrapolation; what is not even a number becomes the safe speed.

    >>> keep_near(np.array([10.0, 10.0, 10.0]), np.log([11.0, 1000.0, np.nan]))
    array([11., 40., 10.])
    """
    middle = np.log(speeds)
    modelled = np.exp(np.clip(log_speeds, middle - _FAR, middle + _FAR))
    return np.where(np.isnan(modelled), speeds, modelled)

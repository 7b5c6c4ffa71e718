"""Schemes: pure state machines that decide which workers wait for which.

`SCHEMES` is the registry; `make_scheme` reads the short form used on command lines. LB-BSP is not
a separate scheme: it is `bsp` with a policy.

>>> make_scheme("ssp:bound=1", num_workers=2).arrive(0).starts
()
"""

from __future__ import annotations

from collections.abc import Callable

from evenstep.core.short_form import construct, parse_spec, require_whole
from evenstep.errors import InvalidSetting
from evenstep.simulator.schemes.bsp import Bsp
from evenstep.simulator.schemes.flexrr import FlexRR
from evenstep.simulator.schemes.scheme import Answer, Scheme
from evenstep.simulator.schemes.ssp import Asp, Ssp

__all__ = ["SCHEMES", "Answer", "Asp", "Bsp", "FlexRR", "Scheme", "Ssp", "make_scheme"]

SCHEMES: dict[str, Callable[..., Scheme]] = {
    "bsp": Bsp,
    "asp": Asp,
    "ssp": Ssp,
    "flexrr": FlexRR,
}


def make_scheme(spec: str, num_workers: int) -> Scheme:
    """Make a scheme for `num_workers` from its short form, ``name[:setting=value,...]``."""
    require_whole("the number of workers", num_workers)
    name, settings = parse_spec(spec)
    if name not in SCHEMES:
        raise InvalidSetting(f"scheme must be one of {', '.join(SCHEMES)}, got {name!r}")
    return construct(SCHEMES[name], name, settings, num_workers)

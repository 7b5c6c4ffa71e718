"""Schemes: who waits for whom. Pure state machines that answer arrivals.

`SCHEMES` is the registry; `make_scheme` reads the short form used on command lines. LB-BSP is `bsp`
with a policy, so it is none of its own here.

>>> make_scheme("ssp:bound=1", num_workers=2).arrive(0).starts
()
"""

from __future__ import annotations

from collections.abc import Callable

from evenstep.core.short_form import construct, parse_spec, require_whole
from evenstep.errors import InvalidSetting
from evenstep.simulator.schemes.asp import Asp
from evenstep.simulator.schemes.bsp import Bsp
from evenstep.simulator.schemes.flexrr import FlexRR
from evenstep.simulator.schemes.scheme import Answer, Scheme
from evenstep.simulator.schemes.ssp import Ssp

__all__ = ["SCHEMES", "Answer", "Asp", "Bsp", "FlexRR", "Scheme", "Ssp", "make_scheme"]

SCHEMES: dict[str, Callable[..., Scheme]] = {
    "bsp": Bsp,
    "asp": Asp,
    "ssp": Ssp,
    "flexrr": FlexRR,
}


def make_scheme(spec: str, num_workers: int) -> Scheme:
    """Make a scheme from its short form, ``name[:setting=value,...]``, for so many workers."""
    require_whole("the number of workers", num_workers)
    name, settings = parse_spec(spec)
    if name not in SCHEMES:
        raise InvalidSetting(f"scheme must be one of {', '.join(SCHEMES)}, got {name!r}")
    return construct(SCHEMES[name], name, settings, num_workers)

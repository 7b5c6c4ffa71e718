"""Policies: decide the batch sizes at an iteration boundary.

`POLICIES` and `WRAPPERS` are the registries. `make_policy` reads the short form used on command
lines: a policy, its settings, and wrappers around it.

>>> make_policy("even")
Even()
>>> make_policy("static:shares=1/3+every_n:n=5")
EveryN(inner=Static(shares=(1.0, 3.0)), n=5)
>>> make_policy("static:shares=2/2/15")
Static(shares=(2.0, 2.0, 15.0))
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any

from evenstep.core import Policy
from evenstep.core.short_form import construct, parse_spec
from evenstep.errors import InvalidSetting
from evenstep.policies.cautious import Cautious
from evenstep.policies.equal_finish import EqualFinish
from evenstep.policies.proportional import Proportional
from evenstep.policies.static import Even, Static
from evenstep.policies.stepwise import Stepwise
from evenstep.policies.whole_granules import WholeGranules
from evenstep.policies.wrappers import DeadBand, EveryN, Limited, ObserveOnly

__all__ = [
    "POLICIES",
    "WRAPPERS",
    "Cautious",
    "DeadBand",
    "EqualFinish",
    "Even",
    "EveryN",
    "Limited",
    "ObserveOnly",
    "Policy",
    "Proportional",
    "Static",
    "Stepwise",
    "WholeGranules",
    "default_policy",
    "make_policy",
    "short_form",
]

POLICIES: dict[str, Callable[..., Policy[Any]]] = {
    "even": Even,
    "static": Static,
    "proportional": Proportional,
    "cautious": Cautious,
    "stepwise": Stepwise,
    "equal_finish": EqualFinish,
}

WRAPPERS: dict[str, Callable[..., Policy[Any]]] = {
    "limited": Limited,
    "every_n": EveryN,
    "dead_band": DeadBand,
    "observe_only": ObserveOnly,
    "whole_granules": WholeGranules,
}


MOST_WRAPPERS = 16
"""Wrappers around a policy."""


def make_policy(spec: str) -> Policy[Any]:
    """Make a policy from its short form: ``name[:setting=value,...][+wrapper[:...]]...``."""
    first, *wrappers = spec.split("+")
    if len(wrappers) > MOST_WRAPPERS:
        raise InvalidSetting(
            f"a policy must have at most {MOST_WRAPPERS} wrappers, got {len(wrappers)}"
        )
    name, settings = parse_spec(first)
    if name not in POLICIES:
        raise InvalidSetting(f"policy must be one of {', '.join(POLICIES)}, got {name!r}")
    policy: Policy[Any] = construct(POLICIES[name], name, settings)
    for wrapper in wrappers:
        name, settings = parse_spec(wrapper)
        if name not in WRAPPERS:
            raise InvalidSetting(f"wrapper must be one of {', '.join(WRAPPERS)}, got {name!r}")
        policy = construct(WRAPPERS[name], name, settings, policy)
    return policy


def default_policy(device: str | None = None, reads_usage: bool = False) -> str:
    """Return the policy of a training whose user names none, however it is started.

    A speed can be predicted from the usage of a CPU, so the paper's Alg. 1 fits where workers
    compute on CPUs and their usage is read, held back where its predictions are noise. Where it is
    not, as on accelerators, the line of each worker's times says more. docs/policies.md has the
    rule for users.

    `device` is the kind of device that the workers compute on, None where nobody knows; where
    kinds differ, one that is no CPU.

    >>> default_policy("cpu", reads_usage=True), default_policy("gpu", reads_usage=True)
    ('cautious', 'equal_finish')
    >>> default_policy()
    'equal_finish'
    """
    return "cautious" if device == "cpu" and reads_usage else "equal_finish"


def short_form(policy: Policy[Any]) -> str:
    """Return the short form of a policy, with the settings that differ from their defaults.

    >>> short_form(make_policy("static:shares=1/3+every_n:n=5")), short_form(EqualFinish())
    ('static:shares=1/3+every_n:n=5', 'equal_finish')
    """
    names = {made: name for name, made in {**POLICIES, **WRAPPERS}.items()}
    name = names.get(type(policy), type(policy).__name__)
    inner: Policy[Any] | None = getattr(policy, "inner", None)
    settings = ",".join(_changed(policy))
    own = f"{name}:{settings}" if settings else name
    return own if inner is None else f"{short_form(inner)}+{own}"


def _changed(policy: Policy[Any]) -> list[str]:
    if not is_dataclass(policy):
        return []
    values = {field: getattr(policy, field.name) for field in fields(policy)}
    return [
        f"{field.name}={_written(value)}"
        for field, value in values.items()
        if field.name != "inner" and value != field.default
    ]


def _written(value: object) -> str:
    if isinstance(value, tuple):
        return "/".join(map(_written, value))
    return f"{value:g}" if isinstance(value, float) else str(value)

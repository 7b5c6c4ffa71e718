"""Contenders: the schemes of a comparison, in the short form used on command lines.

>>> [contender.label for contender in parse_scheme_specs("asp,ssp:bound=3,lb-bsp:even,unweighted")]
['bsp', 'asp', 'ssp:bound=3', 'lb-bsp:even,unweighted']
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from evenstep.core.short_form import construct, parse_spec, require_whole
from evenstep.errors import InvalidSetting
from evenstep.simulator.schemes import make_scheme

BSP = "bsp"
SEQUENTIAL_BSP = "sequential-bsp"


@dataclass(frozen=True)
class SchemeSpec:
    """A scheme with its policy and the changes to the cluster that it needs."""

    label: str
    """As given by the user."""
    scheme: str
    """In short form, as `make_scheme` reads it."""
    policy: str | None = "even"
    """None: the default of the cluster."""
    predictor: str | None = None
    """None: the default of the policy."""
    weighted: bool = True
    redundant: bool = False
    """Whether the cluster has backup workers."""
    backups: int | None = None
    """Number of backups; None: the default."""
    like: str | None = None
    """The worker that backups are copies of; None: the default."""
    sequential: bool = False
    """Whether workers process one sample at a time."""

    @property
    def compares_with(self) -> str:
        """The BSP that processes samples in the same way."""
        is_sequential = self.sequential or self.scheme.partition(":")[0] == "flexrr"
        return SEQUENTIAL_BSP if is_sequential else BSP


def parse_scheme_specs(text: str) -> list[SchemeSpec]:
    """Parse schemes separated by commas, which also separate the settings of each.

    BSP is always first, because all schemes are compared with it.
    """
    contenders = [_contender(spec) for spec in _specs(text)]
    labels = [contender.label for contender in contenders]
    for label in labels:
        if labels.count(label) > 1:
            raise InvalidSetting(f"schemes must be given once each, got {label!r} twice")
    return [_contender(BSP), *(each for each in contenders if each.label != BSP)]


def _specs(text: str) -> list[str]:
    """Split at the commas that are followed by a scheme, not by a setting."""
    specs: list[str] = []
    for item in text.split(","):
        is_setting = "=" in item.partition(":")[0] or item in _WORDS
        if is_setting and specs:
            specs[-1] += ("," if ":" in specs[-1] else ":") + item
        else:
            specs.append(item)
    return specs


def _contender(spec: str) -> SchemeSpec:
    name, _, rest = spec.partition(":")
    if name not in CONTENDERS:
        raise InvalidSetting(f"scheme must be one of {', '.join(CONTENDERS)}, got {name!r}")
    return CONTENDERS[name](spec, rest)


def _plain(spec: str, rest: str) -> SchemeSpec:
    name, settings = parse_spec(spec)
    if settings:
        hint = " (backups go with backup)" if "backups" in settings else ""
        raise InvalidSetting(f"{name} has no settings, got {rest!r}{hint}")
    return SchemeSpec(name, BSP, sequential=name == SEQUENTIAL_BSP)


def _other(spec: str, rest: str) -> SchemeSpec:
    # Checks the settings now, before other schemes run; two workers are enough for that.
    make_scheme(spec, num_workers=2)
    return SchemeSpec(spec, spec)


def _backup(spec: str, rest: str) -> SchemeSpec:
    def make(backups: int | None = None, like: str | None = None) -> SchemeSpec:
        if backups is not None:
            require_whole("backups of backup", backups)
        return SchemeSpec(spec, BSP, redundant=True, backups=backups, like=like)

    return construct(make, *parse_spec(spec))


def _balanced(spec: str, rest: str) -> SchemeSpec:
    items = rest.split(",") if rest else []
    words = [item for item in items if item in _WORDS]
    predictors = [item for item in items if item.startswith(_PREDICTOR)]
    policy = ",".join(item for item in items if item not in [*words, *predictors])
    if len(words) > 1 or len(predictors) > 1:
        twice = (words if len(words) > 1 else predictors)[-1]
        raise InvalidSetting(f"settings of lb-bsp must be given once each, got a second {twice!r}")
    return SchemeSpec(
        spec,
        BSP,
        policy or None,
        predictors[0].removeprefix(_PREDICTOR) if predictors else None,
        weighted="unweighted" not in words,
    )


_WORDS = ("weighted", "unweighted")
_PREDICTOR = "predictor="

CONTENDERS: dict[str, Callable[[str, str], SchemeSpec]] = {
    BSP: _plain,
    "asp": _other,
    "ssp": _other,
    "backup": _backup,
    "flexrr": _other,
    "lb-bsp": _balanced,
    SEQUENTIAL_BSP: _plain,
}
"""Called with the short form of a contender and the part after its colon."""

"""Settings: from a mode and short forms to a policy and a predictor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import is_dataclass
from typing import Any

import torch

from evenstep.errors import InvalidSetting
from evenstep.policies import Even, ObserveOnly, Policy, Static, make_policy
from evenstep.predictors import Predictor, make_predictor

MODES = ("balanced", "static", "observe", "off")


def choose_policy(
    mode: str,
    policy: str | Policy[Any] | None,
    shares: Sequence[float] | None,
    device: torch.device,
) -> Policy[Any]:
    """Return the policy of a mode: by predicted speeds on CPUs, by finish times on accelerators."""
    if mode not in MODES:
        raise InvalidSetting(f"mode must be one of {', '.join(MODES)}, got {mode!r}")
    if (mode == "static") != (shares is not None):
        raise InvalidSetting(f"shares go with mode 'static', got {shares!r} with {mode!r}")
    default = "proportional" if device.type == "cpu" else "equal_finish"
    if shares is not None:
        chosen: Policy[Any] = Static(tuple(float(share) for share in shares))
    elif mode == "off":
        chosen = Even()
    elif policy is None or isinstance(policy, str):
        chosen = make_policy(policy or default)
    else:
        chosen = policy
    return ObserveOnly(chosen) if mode == "observe" else chosen


def name_of(policy: str | Policy[Any] | None) -> str | None:
    """Return what tells policies apart between processes, which an object's address does not."""
    if policy is None or isinstance(policy, str):
        return policy
    return repr(policy) if is_dataclass(policy) else type(policy).__qualname__


def choose_predictor(policy: Policy[Any], predictor: str | None) -> Predictor | None:
    """Return this worker's predictor, where the policy needs one or the user wants one."""
    if predictor is None and not policy.uses_speeds:
        return None
    return make_predictor(predictor or "best_of", num_workers=1)

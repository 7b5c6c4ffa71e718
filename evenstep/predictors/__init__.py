"""Predictors: predict the speed of every worker in the next iteration.

`PREDICTORS` is the registry; `make_predictor` reads the short form used on command lines.

>>> make_predictor("ema:alpha=0.5", num_workers=4).num_workers
4
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from evenstep.core import Predictor, Trainable
from evenstep.core.short_form import construct, parse_spec
from evenstep.errors import InvalidSetting
from evenstep.predictors.arima import Arima
from evenstep.predictors.best_of import BestOf
from evenstep.predictors.ema import Ema
from evenstep.predictors.kalman import Kalman
from evenstep.predictors.median import Median
from evenstep.predictors.narx import make_narx
from evenstep.predictors.recurrent import make_lstm, make_rnn

__all__ = [
    "DEFAULT_PREDICTOR",
    "PREDICTORS",
    "Arima",
    "BestOf",
    "Ema",
    "Kalman",
    "Median",
    "Predictor",
    "Trainable",
    "make_predictor",
]


DEFAULT_PREDICTOR = "best_of"
"""The predictor of a policy that needs one, where the user names none."""


def _best_of(num_workers: int, narx: bool = False) -> BestOf:
    """Make the default: kalman, ema and median together, and NARX if requested."""
    candidates: dict[str, Predictor] = {
        "kalman": Kalman(num_workers),
        "ema": Ema(num_workers),
        "median": Median(num_workers),
    }
    if narx:
        candidates["narx"] = make_narx(num_workers)
    return BestOf(candidates)


PREDICTORS: dict[str, Callable[..., Predictor]] = {
    "memoryless": partial(Ema, alpha=1.0),
    "ema": Ema,
    "median": Median,
    "arima": Arima,
    "rnn": make_rnn,
    "lstm": make_lstm,
    "narx": make_narx,
    "kalman": Kalman,
    "best_of": _best_of,
}


def make_predictor(spec: str, num_workers: int) -> Predictor:
    """Make a predictor from its short form: ``name[:setting=value,...]``."""
    name, settings = parse_spec(spec)
    if name not in PREDICTORS:
        raise InvalidSetting(f"predictor must be one of {', '.join(PREDICTORS)}, got {name!r}")
    return construct(PREDICTORS[name], name, settings, num_workers)

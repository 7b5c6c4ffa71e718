"""Advice: the gain of balancing, estimated from recorded times or from a described cluster."""

from evenstep.insight.advice.advising import Advice, advise
from evenstep.insight.advice.case import Case, case_of_cluster
from evenstep.insight.advice.observations import Observations, observations_of
from evenstep.insight.advice.times_files import read_times

__all__ = [
    "Advice",
    "Case",
    "Observations",
    "advise",
    "case_of_cluster",
    "observations_of",
    "read_times",
]

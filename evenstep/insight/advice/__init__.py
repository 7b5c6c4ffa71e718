"""Advice: what balancing would gain, from recorded times or from a cluster that is described."""

from evenstep.insight.advice.advising import Advice, advise
from evenstep.insight.advice.case import Case, case_of_cluster
from evenstep.insight.advice.estimate import Estimate
from evenstep.insight.advice.observations import Observations, observations_of
from evenstep.insight.advice.recorded import case_of
from evenstep.insight.advice.times_files import read_times

__all__ = [
    "Advice",
    "Case",
    "Estimate",
    "Observations",
    "advise",
    "case_of",
    "case_of_cluster",
    "observations_of",
    "read_times",
]

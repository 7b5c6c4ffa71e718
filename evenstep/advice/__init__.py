"""Advice: what balancing would gain, from recorded times or from a cluster that is described."""

from evenstep.advice.advising import Advice, advise
from evenstep.advice.case import Case
from evenstep.advice.estimate import Estimate
from evenstep.advice.from_cluster import case_of_cluster
from evenstep.advice.from_log import observations_of
from evenstep.advice.observations import Observations
from evenstep.advice.recorded import case_of
from evenstep.advice.times_files import read_times

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

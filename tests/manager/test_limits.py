"""The table of limits in the docs is that of the code."""

import re
from pathlib import Path

from evenstep.core import LARGEST_TOTAL, short_form
from evenstep.manager import endpoint, job, job_settings, job_store, jobs, listening, service, wire
from evenstep.manager.client_connection import MAX_REFUSED
from evenstep.policies import MOST_WRAPPERS, stepwise
from evenstep.predictors import arima, learned, median, networks, record

DOCS = Path(__file__).parents[2] / "docs" / "manager.md"
LIMITS = {
    "bytes of a request": wire.MAX_REQUEST,
    "jobs": jobs.MAX_JOBS,
    "jobs that wait to be made": service.MOST_MAKING,
    "workers of a job, and at most half as many as there may be connections": (
        job_settings.MAX_WORKERS
    ),
    "total, minimum and granularity of a job": LARGEST_TOTAL,
    "characters of a policy or predictor": short_form.LONGEST_FORM,
    "wrappers around a policy": MOST_WRAPPERS,
    "windows of `stepwise`, iterations": stepwise.LONGEST_WINDOW,
    "look_back of `median`": median.MOST_LOOK_BACK,
    "p, d and q of `arima`": arima.LARGEST_ORDER,
    "hidden units of `narx`, `rnn`, `lstm`": networks.MOST_HIDDEN,
    "parameters of the networks of all workers of a job": learned.MOST_PARAMETERS,
    "observations of a worker that a predictor keeps": record.LONGEST_HISTORY,
    "observations of all workers that a predictor keeps when a job begins": (
        record.MOST_OBSERVATIONS
    ),
    "number of a plan that a worker says it holds, unless the manager made it": (
        job_store.LARGEST_NUMBER
    ),
    "seconds of a lease": job.LONGEST_LEASE,
    "seconds that a worker without a connection stays a member": job.AWAY,
    "seconds of a wait": job.LONGEST_WAIT,
    "connections of workers": endpoint.MAX_CONNECTIONS,
    "connections that have not said `hello`": listening.MOST_STRANGERS,
    "seconds of silence before a connection's `hello`": endpoint.HELLO,
    "seconds of a TLS handshake": listening.HANDSHAKE,
    "seconds of silence of a connection on which no worker joined": endpoint.PATIENCE,
    "refused calls in a row on a connection": MAX_REFUSED,
    "bytes of unread replies on a connection": endpoint.MAX_UNREAD,
}


def test_table_of_limits_has_the_numbers_of_the_code():
    table = DOCS.read_text().split("## Limits")[1].split("\n\n")[2]
    rows = re.findall(r"^\| ([^|;(]+?)(?: ?[;(][^|]*)? \| ([\d,]+) \|$", table, re.MULTILINE)
    assert {what: float(number.replace(",", "")) for what, number in rows} == LIMITS

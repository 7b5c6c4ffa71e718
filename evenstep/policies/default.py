"""The default policy: one rule for every way to start a training.

A speed can be predicted from the usage of a CPU, so the paper's Alg. 1 fits where workers compute
on CPUs and their usage is read, held back where its predictions are noise. Where it is not, as on
accelerators, the line of each worker's times says more. docs/policies.md has the rule for users.
"""

from __future__ import annotations


def default_policy(device: str | None = None, reads_usage: bool = False) -> str:
    """Return the policy of a training whose user names none.

    `device` is the kind of device that the workers compute on, None where nobody knows; where
    kinds differ, one that is no CPU.

    >>> default_policy("cpu", reads_usage=True), default_policy("gpu", reads_usage=True)
    ('cautious', 'equal_finish')
    >>> default_policy()
    'equal_finish'
    """
    return "cautious" if device == "cpu" and reads_usage else "equal_finish"

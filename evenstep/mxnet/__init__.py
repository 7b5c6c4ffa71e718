"""The MXNet adapter: batches of planned sizes, weighted pushes, times without waiting.

Start with `balancer.py`, then `store.py` and `data_iter.py`. MXNet is retired upstream: 1.9.1 is
the last version, and the only one supported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from evenstep.mxnet.balancer import Balancer
    from evenstep.mxnet.data_iter import DealtIter

__all__ = ["Balancer", "DealtIter"]


def __getattr__(name: str) -> Any:
    # A server imports `collective` while it imports MXNet, which is not complete then.
    if name == "Balancer":
        from evenstep.mxnet.balancer import Balancer

        return Balancer
    if name == "DealtIter":
        from evenstep.mxnet.data_iter import DealtIter

        return DealtIter
    raise AttributeError(f"module 'evenstep.mxnet' has no attribute {name!r}")

"""The MXNet adapter: batches of planned sizes, weighted pushes, clocks that leave out waiting.

Start with `balancer.py`, then `store.py` and `data_iter.py`. MXNet is retired upstream: 1.9.1 is
the last version, and the only one that this is made for.
"""

from evenstep.mxnet.balancer import Balancer
from evenstep.mxnet.data_iter import DealtIter

__all__ = ["Balancer", "DealtIter"]

"""The JAX adapter: balances loops whose workers are the processes of jax.distributed.

`balancer.loader` yields as many samples as the plan says, and `balancer.value_and_grad` pads them
to whole buckets, so that few shapes are compiled. It weights gradients sample by sample, before a
sum over all processes. The batch processing time ends when the gradient of this process is ready;
compilation does not count.
"""

from evenstep.jax.balancer import Balancer

__all__ = ["Balancer"]

"""The JAX adapter: balances loops whose workers are the processes of jax.distributed.

How the next batch gets its size: `balancer.loader` yields as many samples as the plan says, and
`balancer.value_and_grad` pads them to whole buckets, so that few shapes are compiled. Where the
gradient is weighted: in there, sample by sample, before a sum over all processes. When t stops:
when this process's own gradient is ready; compiling does not count.
"""

from evenstep.jax.balancer import Balancer

__all__ = ["Balancer"]

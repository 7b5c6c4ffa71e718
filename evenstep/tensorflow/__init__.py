"""The TensorFlow adapter: balances MultiWorkerMirroredStrategy, in a custom loop or `model.fit`.

from evenstep.tensorflow import Balancer
balancer = Balancer(strategy, total=256)
dataset = balancer.dataset((images, labels))     # instead of batch() and a distributed data set
for x, y in dataset:
    loss, gradients = local_gradients(x, y)      # of the mean over this worker's batch
    balancer.apply(optimizer, gradients, model.trainable_variables)

from evenstep.tensorflow import FitBalancer
balancer = FitBalancer(model, total=256)
model.fit(balancer.dataset((images, labels)), epochs=5, callbacks=[balancer], shuffle=False)

A `ServerBalancer` is for the paper's synchronous training with a `ParameterServer`.
"""

from evenstep.tensorflow.balancer import Balancer
from evenstep.tensorflow.dataset import BalancedDataset
from evenstep.tensorflow.fit import FitBalancer
from evenstep.tensorflow.parameter_server import ParameterServer
from evenstep.tensorflow.server_balancer import ServerBalancer

__all__ = ["BalancedDataset", "Balancer", "FitBalancer", "ParameterServer", "ServerBalancer"]

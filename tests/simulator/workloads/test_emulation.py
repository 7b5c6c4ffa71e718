"""An emulated device takes its time within its own work."""

import pytest
import torch

from evenstep.simulator.workloads.digits import digits, digits_net
from evenstep.simulator.workloads.emulation import EmulatedDevice


def train_once(curve, batch_size=8):
    """Run one iteration, and return the device and what it measured."""
    net = digits_net()
    device = EmulatedDevice(curve)
    device.slow_down(net[0])
    images, labels = (tensor[:batch_size] for tensor in digits()[0].tensors)
    device.start()
    device.batch(batch_size)
    # As in DDP: post-accumulate hooks run after the hooks of a gradient.
    first, bias = net[0].parameters()
    first.register_post_accumulate_grad_hook(lambda _: device.stop())
    bias.requires_grad_(False)
    torch.nn.functional.cross_entropy(net(images), labels).backward()
    return device, device.finished()


def test_batch_lasts_as_long_as_the_curve_says():
    device, measured = train_once(lambda batch_size: 0.05 * batch_size)
    assert measured.batch_size == 8
    assert measured.time >= 0.4
    assert device.late == 0


@pytest.mark.parametrize(("seconds", "late"), [(1e-9, 1), (0.0, 0)])
def test_computation_that_takes_longer_is_counted_unless_nothing_is_emulated(seconds, late):
    device, _ = train_once(lambda batch_size: seconds)
    assert device.late == late


def test_digits_are_dealt_out_to_training_and_testing_once():
    train, test = digits()
    assert (len(train), len(test)) == (1536, 261)
    assert set(train.tensors[1].tolist()) == set(test.tensors[1].tolist()) == set(range(10))

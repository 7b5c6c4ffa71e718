"""Devices: the memory of a GPU, by a stand-in for one; and which strategies are refused."""

from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.client import device_lib

from evenstep.errors import InvalidSetting
from evenstep.tensorflow import Balancer, FitBalancer
from evenstep.tensorflow.balancer import DeviceMemory


class Gpu:
    """What TensorFlow says about a GPU of 1000 bytes that it may use."""

    def __init__(self, monkeypatch):
        self.peak = 400
        self.asked = []
        experimental = tf.config.experimental
        monkeypatch.setattr(experimental, "get_memory_info", self.info)
        monkeypatch.setattr(experimental, "reset_memory_stats", self.reset)
        devices = [
            SimpleNamespace(name="/device:CPU:0", memory_limit=7),
            SimpleNamespace(name="/device:GPU:0", memory_limit=1000),
        ]
        monkeypatch.setattr(device_lib, "list_local_devices", lambda: devices)

    def info(self, device):
        self.asked.append(device)
        return {"current": 100, "peak": self.peak}

    def reset(self, device):
        self.asked.append(device)
        self.peak = 150


def test_device_memory_is_the_peak_since_the_last_reading(monkeypatch):
    gpu = Gpu(monkeypatch)
    read = DeviceMemory().read
    assert [read(), read()] == [0.4, 0.15]
    assert set(gpu.asked) == {"GPU:0"}


def test_a_share_is_at_most_the_whole(monkeypatch):
    gpu = Gpu(monkeypatch)
    gpu.peak = 1200
    assert DeviceMemory().read() == 1.0


def test_a_worker_has_one_device():
    strategy = SimpleNamespace(extended=SimpleNamespace(worker_devices=("GPU:0", "GPU:1")))
    with pytest.raises(InvalidSetting, match=r"\bone device\b.* got 2: "):
        Balancer(strategy, 64)


def test_a_model_outside_of_all_scopes_is_refused():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    with pytest.raises(InvalidSetting, match=r"strategy must be made\b.*model"):
        FitBalancer(model, 64)


def test_a_worker_can_train_alone():
    with tf.distribute.OneDeviceStrategy("cpu:0").scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.1), "mse")
    balancer = FitBalancer(model, 8, summary=False)
    samples = balancer.dataset((np.ones((20, 2)), np.ones((20, 1))))
    model.fit(samples, callbacks=[balancer], verbose=0, shuffle=False)
    balancer.close()
    assert (balancer.iteration, balancer.plan.sizes.tolist()) == (3, [8])


def test_an_asynchronous_strategy_is_refused():
    strategy = object.__new__(tf.distribute.ParameterServerStrategy)
    with pytest.raises(InvalidSetting, match=r"\bsynchronous, got ParameterServerStrategy"):
        Balancer(strategy, 64)


@pytest.mark.parametrize("name", ["straggler", "lag", "micro_batches", "nonsense"])
def test_what_is_no_setting_is_refused(name):
    with pytest.raises(InvalidSetting, match=f"got '{name}'"):
        Balancer(tf.distribute.OneDeviceStrategy("cpu:0"), 64, **{name: 1})  # type: ignore[arg-type]

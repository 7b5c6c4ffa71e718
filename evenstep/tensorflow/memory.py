"""Device memory: what TensorFlow holds of a GPU at its peak.

Written to the API and tested with a stand-in; not yet run on a GPU.
"""

from __future__ import annotations

import tensorflow as tf
from tensorflow.python.client import device_lib

_DEVICE = "GPU:0"
"""A worker has one device."""


class DeviceMemory:
    """The peak of what TensorFlow holds of the GPU since the last reading."""

    def __init__(self) -> None:
        self._capacity = capacity_of(_DEVICE)

    def read(self) -> float | None:
        peak = tf.config.experimental.get_memory_info(_DEVICE)["peak"]
        tf.config.experimental.reset_memory_stats(_DEVICE)
        return min(1.0, peak / self._capacity) if self._capacity else None


def capacity_of(device: str) -> int:
    """Return the bytes that TensorFlow may use of a device; 0 where it does not say."""
    for found in device_lib.list_local_devices():
        if found.name.endswith(device):
            return int(found.memory_limit)
    return 0


def device_kind(name: str) -> str:
    """Return the kind of a device from its name.

    >>> device_kind("/job:worker/replica:0/task:0/device:CPU:0")
    'cpu'
    """
    kind = tf.DeviceSpec.from_string(name).device_type
    return "cpu" if kind is None else str(kind).lower()

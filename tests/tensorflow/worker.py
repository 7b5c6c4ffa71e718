"""One worker process: makes the strategy, and does the jobs that come over its connection."""

from __future__ import annotations

import gc
import pickle
import sys
import traceback
from importlib import import_module
from multiprocessing.connection import Connection
from typing import Any

import keras
import tensorflow as tf

from tests.distributed.workers import Failure, Job


def main() -> None:
    connection: Connection[Any, Any] = Connection(int(sys.argv[1]))
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    connection.send("ready")
    while True:
        try:
            job = connection.recv()
        except (EOFError, ConnectionResetError):
            return
        connection.send_bytes(pickle.dumps(_do(job, strategy)))


def _do(job: Job, strategy: tf.distribute.Strategy) -> Any:
    keras.utils.set_random_seed(0)
    try:
        return getattr(import_module(job.module), job.function)(strategy, **job.arguments)
    except Exception as error:
        return Failure(type(error).__name__, str(error), traceback.format_exc())
    finally:
        gc.collect()


if __name__ == "__main__":
    main()

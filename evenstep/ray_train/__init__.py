"""Evenstep for Ray Train: in place of `prepare_model` and `prepare_data_loader`, one line.

    from evenstep.ray_train import prepare

    def train_loop_per_worker(config):
        model, loader = prepare(net, DataLoader(dataset, batch_size=32, shuffle=True))

`loader.figures()` goes into `ray.train.report`, `loader.state_dict()` into a checkpoint.
"""

from evenstep.ray_train.prepared import PreparedLoader, prepare

__all__ = ["PreparedLoader", "prepare"]

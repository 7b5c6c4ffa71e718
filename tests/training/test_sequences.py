"""Iteration k deals out the same samples in every framework: those that were written down."""

import numpy as np

from evenstep.training.epochs import Epochs
from evenstep.training.loop import batches
from evenstep.training.loop_setup import make_loop
from tests.training.sequences import read_sequences
from tests.training.threads import together

WRITTEN = read_sequences()


def test_what_was_written_down_has_every_sample_of_a_padded_epoch():
    iterations = -(-WRITTEN.num_samples // WRITTEN.total)
    assert len(WRITTEN.worker_samples) == 2 * iterations
    for epoch in (0, 1):
        dealt = WRITTEN.worker_samples[epoch * iterations : (epoch + 1) * iterations]
        everything = [sample for workers in dealt for samples in workers for sample in samples]
        # One is repeated, as 103 samples are no multiple of 2 workers.
        repeated = WRITTEN.worker_samples[epoch * iterations][0][0]
        assert sorted(everything) == sorted([*range(WRITTEN.num_samples), repeated])
        sizes = [[len(samples) for samples in workers] for workers in dealt]
        assert sizes[:-1] == WRITTEN.plans[epoch * iterations : (epoch + 1) * iterations - 1]
    assert len({tuple(plan) for plan in WRITTEN.plans}) > 5


def test_epochs_deal_out_what_was_written_down():
    epochs = Epochs(WRITTEN.num_samples, WRITTEN.total, seed=WRITTEN.seed, num_workers=2)
    for plan, expected in zip(WRITTEN.plans, WRITTEN.worker_samples, strict=True):
        dealt = [epochs.deal(np.array(plan), worker) for worker in range(WRITTEN.num_workers)]
        assert [mine.samples.tolist() for mine in dealt if mine is not None] == expected
        epochs.advance()
        if epochs.position == len(epochs):
            epochs.end()


def test_loops_deal_out_what_was_written_down():
    def work(collective):
        loop = make_loop(
            collective, WRITTEN.total, framework="threads", policy=WRITTEN.policy(), summary=False
        )
        epochs = Epochs.of_loop(loop, WRITTEN.num_samples, seed=WRITTEN.seed)
        seen = []
        for dealt in (dealt for _ in range(2) for dealt in batches(loop, epochs)):
            seen.append(dealt.samples.tolist())
            loop.finish()
            loop.take(collective.everybody(loop.slots().ravel().astype(np.float64)).sum(axis=0))
        loop.close()
        return seen

    workers = range(WRITTEN.num_workers)
    assert together(WRITTEN.num_workers, work) == [WRITTEN.of_worker(worker) for worker in workers]

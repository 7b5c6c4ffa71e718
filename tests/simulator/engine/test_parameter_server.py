"""The parameter server: its arithmetic, its shards, and pulls."""

import numpy as np
import pytest
import torch

from evenstep.core import gradient_weight
from evenstep.errors import InvalidSetting
from evenstep.simulator.engine.optimizers import make_optimizer
from evenstep.simulator.engine.parameter_server import ParameterServer, Shard
from evenstep.simulator.engine.sharding import ShardLayout, deal_to_shards

SHAPES = [(7, 3), (2,), (11,), (4, 4), (1,)]
OPTIMIZERS = [
    "sgd:learning_rate=0.1",
    "sgd:learning_rate=0.1,momentum=0.9,weight_decay=0.01",
    "adam:learning_rate=0.1",
]


def tensors(seed):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in SHAPES]


def server_of(parameters, optimizer="sgd:learning_rate=0.5", buffers=(), **how):
    return ParameterServer(parameters, buffers, make_optimizer(optimizer), **how)


def test_update_is_the_mean_of_what_was_pushed_by_hand():
    server = server_of([torch.tensor([1.0, 2.0])], num_workers=2)
    # 3 and 1 of 4 samples: 1.5 and 0.5 times gradients 2 and 4; their mean is 2.5.
    for batch_size, gradient in ((3, 2.0), (1, 4.0)):
        weight = gradient_weight(batch_size, total=4, num_workers=2)
        server.push([torch.full((2,), gradient)], weight)
    server.update()
    assert server.pull()[0].tolist() == [1 - 0.5 * 2.5, 2 - 0.5 * 2.5]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_shard_continues_from_the_state_of_another(optimizer):
    first, second = (Shard(tensors(seed), make_optimizer(optimizer)) for seed in (0, 1))

    def train(shard, *seeds):
        for seed in seeds:
            shard.push(tensors(seed), 1.0)
            shard.update()

    train(first, 10, 11)
    first.push(tensors(12), 1.0)
    second.push(tensors(13), 1.0)
    second.load(first.state())
    assert all(torch.equal(a, b) for a, b in zip(first.pull(), second.pull(), strict=True))
    first.update()
    train(second, 12)
    train(first, 14)
    train(second, 14)
    assert all(torch.equal(a, b) for a, b in zip(first.pull(), second.pull(), strict=True))


def test_state_stays_as_it_was():
    shard = Shard([torch.zeros(1)], make_optimizer(OPTIMIZERS[1]))
    shard.push([torch.ones(1)], 1.0)
    shard.update()
    state = shard.state()
    before = repr(state)
    shard.push([torch.ones(1)], 1.0)
    shard.update()
    assert repr(state) == before


def test_model_without_buffers_has_no_shard_for_them():
    layouts = [ShardLayout.of([3, 4], num_buffers, num_shards=2) for num_buffers in (0, 1)]
    assert [len(layout.positions) for layout in layouts] == [2, 3]


def test_worker_that_does_not_contribute_does_not_count():
    server = server_of([torch.zeros(1)], num_workers=3)
    server.push([torch.tensor([2.0])], weight=1.0)
    server.push([torch.tensor([4.0])], weight=1.0)
    server.update()
    assert server.pull()[0].tolist() == [-1.5]


def test_asynchronous_push_is_an_update_at_the_nth_part_of_the_learning_rate():
    server = server_of([torch.zeros(1)], num_workers=4, synchronous=False)
    for gradient in (2.0, 4.0):
        server.push([torch.tensor([gradient])], weight=1.0)
        server.update()
    assert server.pull()[0].tolist() == [-0.5 / 4 * 6]


def test_update_without_a_push_changes_nothing():
    server = server_of([torch.ones(2)], "adam", num_workers=2)
    server.update()
    assert server.pull()[0].tolist() == [1.0, 1.0]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_server_does_what_the_optimizer_alone_would(optimizer):
    server = server_of(tensors(0), optimizer, num_workers=2)
    alone = tensors(0)
    stepping = make_optimizer(optimizer).make(alone)
    for k in range(5):
        one, other = tensors(10 + k), tensors(20 + k)
        server.push(one, 1.5)
        server.push(other, 0.5)
        server.update()
        for tensor, a, b in zip(alone, one, other, strict=True):
            tensor.grad = 0.75 * a + 0.25 * b
        stepping.step()
    torch.testing.assert_close(server.pull(), alone, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("num_shards", [2, 3, 8])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_shards_give_the_same_parameters_to_the_bit(optimizer, num_shards):
    servers = [
        server_of(tensors(0), optimizer, tensors(1), num_workers=2, num_shards=shards)
        for shards in (1, num_shards)
    ]
    for k in range(4):
        for server in servers:
            server.push(tensors(10 + k) + tensors(30 + k), 1.5)
            server.push(tensors(20 + k) + tensors(40 + k), 0.5)
            server.update()
    one, many = (server.pull() for server in servers)
    assert len(one) == 2 * len(SHAPES)
    assert all(torch.equal(a, b) for a, b in zip(one, many, strict=True))


def test_pulled_tensors_stay_and_are_shared_until_an_update():
    server = server_of([torch.zeros(3)], num_workers=1)
    first, again = server.pull()[0], server.pull()[0]
    assert first.data_ptr() == again.data_ptr()
    server.push([torch.ones(3)], 1.0)
    server.update()
    assert first.tolist() == [0.0, 0.0, 0.0]
    assert server.pull()[0].tolist() == [-0.5, -0.5, -0.5]


def test_server_does_not_change_what_it_was_made_from():
    parameters = [torch.zeros(2)]
    server = server_of(parameters, num_workers=1)
    server.push([torch.ones(2)], 1.0)
    server.update()
    assert parameters[0].tolist() == [0.0, 0.0]


def test_buffers_are_averaged_whatever_the_learning_rate():
    server = server_of([torch.zeros(1)], buffers=[torch.tensor([8.0])], num_workers=2)
    # Workers left 6 and 2: the gradient is the decrease of the buffer.
    server.push([torch.zeros(1), torch.tensor([2.0])], 1.5)
    server.push([torch.zeros(1), torch.tensor([6.0])], 0.5)
    server.update()
    assert server.pull()[1].tolist() == [0.75 * 6 + 0.25 * 2]


@pytest.mark.parametrize("seed", range(3))
def test_shards_hold_every_tensor_once_and_about_as_much(seed):
    sizes = np.random.default_rng(seed).integers(1, 1000, 40).tolist()
    shards = deal_to_shards(sizes, 4)
    assert sorted(i for shard in shards for i in shard) == list(range(40))
    held = [sum(sizes[i] for i in shard) for shard in shards]
    assert max(held) - min(held) <= max(sizes)


def test_weights_of_all_workers_add_up_to_their_number():
    sizes = (5, 20, 39)
    assert sum(gradient_weight(x, 64, 3) for x in sizes) == pytest.approx(3)


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ("newton", "optimizer must be one of sgd, adam, got 'newton'"),
        ("sgd:learning_rate=0", "learning_rate of sgd must be > 0"),
        ("adam:momentum=0.9", "a setting of 'adam' must be one of"),
    ],
)
def test_optimizer_is_checked(spec, problem):
    with pytest.raises(InvalidSetting, match=problem):
        make_optimizer(spec)

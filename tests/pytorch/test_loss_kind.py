"""Kinds of losses, told from their graphs, and the watch that sees every loss before backward."""

from __future__ import annotations

import gc
import threading
import weakref
from copy import copy
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from evenstep.errors import InvalidSetting
from evenstep.pytorch.loss_check import LossCheck, LossWatch
from evenstep.pytorch.loss_kind import Verdict, kind_of, verdict_of

SIZES = (8, 13)
TOKENS = 6
CLASSES = 5


class Setup:
    """A small model, and a batch of samples."""

    def __init__(self, samples):
        torch.manual_seed(4)
        self.samples = samples
        self.net = nn.Sequential(nn.Linear(4, 7), nn.ReLU(), nn.Linear(7, CLASSES))
        self.weight = self.net[2].weight
        self.x = torch.randn(samples, 4)
        self.y = torch.randint(CLASSES, (samples,))
        self.target = torch.rand(samples, CLASSES)
        self.class_weights = torch.arange(1.0, CLASSES + 1)
        self.tokens = torch.randn(samples, TOKENS, 4)
        self.labels = torch.randint(CLASSES, (samples, TOKENS))
        ignored = torch.rand(samples, TOKENS) < 0.3
        ignored[0, 0] = True
        self.ignored = self.labels.masked_fill(ignored, -100)
        self.mask = self.ignored != -100
        assert self.mask.sum() % samples
        assert 1 < self.mask.sum() < samples * TOKENS

    def part(self, samples):
        """Return a batch of some of these samples, with the same model."""
        part = copy(self)
        for name in ("x", "y", "target", "tokens", "labels", "ignored", "mask"):
            setattr(part, name, getattr(self, name)[samples].clone())
        part.samples = len(part.x)
        return part

    def double(self):
        """Compute in float64 from now on."""
        self.net.double()
        for name in ("x", "target", "tokens", "class_weights"):
            setattr(self, name, getattr(self, name).double())
        return self

    @property
    def out(self):
        """Scores of all samples."""
        return self.net(self.x)

    @property
    def token_scores(self):
        """Scores of all tokens, in one row."""
        return self.net(self.tokens).flatten(0, 1)

    @property
    def losses(self):
        """One loss per sample."""
        return F.cross_entropy(self.out, self.y, reduction="none")

    @property
    def token_losses(self):
        """One loss per sample and token."""
        losses = F.cross_entropy(self.token_scores, self.labels.flatten(), reduction="none")
        return losses.view(self.samples, TOKENS)

    @property
    def mean(self):
        return F.cross_entropy(self.out, self.y)

    @property
    def sum(self):
        return F.cross_entropy(self.out, self.y, reduction="sum")


def gradient(s, loss):
    """Return the gradient of a loss, of all parameters in one row."""
    s.net.zero_grad()
    loss.backward()
    return torch.cat([p.grad.flatten() for p in s.net.parameters()])


def sequence_first(s, reduction="none"):
    scores = s.net(s.tokens.transpose(0, 1)).flatten(0, 1)
    labels = s.labels.T.flatten()
    return F.cross_entropy(scores, labels, reduction=reduction)


def vae(s, reduction):
    gaps = 1 + s.out - s.out.pow(2) - s.out.exp()
    kl = -0.5 * (gaps.sum() if reduction == "sum" else gaps.sum(1).mean())
    return F.binary_cross_entropy_with_logits(s.out, s.target, reduction=reduction) + kl


def ctc(s, reduction):
    scores = s.net(s.tokens.transpose(0, 1)).log_softmax(-1)
    lengths = torch.full((s.samples,), TOKENS)
    return F.ctc_loss(scores, s.labels[:, :2].clamp(1), lengths, lengths // 3, reduction=reduction)


def aux_of_experts(s):
    gates = s.token_scores.softmax(1)
    return CLASSES * (torch.full((CLASSES,), 1 / CLASSES) * gates.mean(0)).sum()


def autocast(s, loss):
    with torch.autocast("cpu", torch.bfloat16):
        return loss(s.out, s.target)


class Double(torch.autograd.Function):
    """A function whose graph says nothing, though its name looks like one of torch's."""

    @staticmethod
    def forward(ctx, value):
        return 2 * value

    @staticmethod
    def backward(ctx, gradient):
        return 2 * gradient


MEANS = {
    "cross_entropy": lambda s: s.mean,
    "nll_loss": lambda s: F.nll_loss(s.out.log_softmax(1), s.y),
    "none and mean": lambda s: s.losses.mean(),
    "label smoothing": lambda s: F.cross_entropy(s.out, s.y, label_smoothing=0.1),
    "probabilities": lambda s: F.cross_entropy(s.out, s.target),
    "tokens": lambda s: F.cross_entropy(s.token_scores, s.labels.flatten()),
    "tokens with label smoothing": lambda s: F.cross_entropy(
        s.token_scores, s.labels.flatten(), label_smoothing=0.1
    ),
    "pixels": lambda s: F.cross_entropy(s.net(s.tokens).transpose(1, 2), s.labels),
    "sequence first": lambda s: sequence_first(s, "mean"),
    "sequence first, over tokens and samples": lambda s: (
        sequence_first(s).view(TOKENS, -1).sum(0).mean()
    ),
    "mse": lambda s: F.mse_loss(s.out, s.target),
    "l1": lambda s: F.l1_loss(s.out, s.target),
    "smooth l1": lambda s: F.smooth_l1_loss(s.out, s.target),
    "huber": lambda s: F.huber_loss(s.out, s.target),
    "bce": lambda s: F.binary_cross_entropy(s.out.sigmoid(), s.target),
    "bce with weights": lambda s: F.binary_cross_entropy(
        s.out.sigmoid(), s.target, weight=s.target
    ),
    "bce with logits": lambda s: F.binary_cross_entropy_with_logits(s.out, s.target),
    "kl batchmean": lambda s: F.kl_div(s.out.log_softmax(1), s.target, reduction="batchmean"),
    "kl of tokens by hand": lambda s: (
        F.kl_div(s.token_scores.log_softmax(1), torch.ones(CLASSES) / 5, reduction="none")
        .sum(-1)
        .mean()
    ),
    "soft margin": lambda s: F.soft_margin_loss(s.out, s.target),
    "multi margin": lambda s: F.multi_margin_loss(s.out, s.y),
    "multilabel margin": lambda s: F.multilabel_margin_loss(
        s.out, F.pad(s.y[:, None], (0, CLASSES - 1), value=-1)
    ),
    "multilabel soft margin": lambda s: F.multilabel_soft_margin_loss(s.out, s.target),
    "poisson": lambda s: F.poisson_nll_loss(s.out, s.target),
    "gaussian": lambda s: F.gaussian_nll_loss(s.out, s.target, torch.ones_like(s.target)),
    "triplet": lambda s: F.triplet_margin_loss(s.out, s.target, -s.target),
    "cosine": lambda s: F.cosine_embedding_loss(s.out, s.target, s.y.sign()),
    "hinge": lambda s: F.hinge_embedding_loss(s.out, (s.target - 0.5).sign()),
    "ranking": lambda s: F.margin_ranking_loss(s.out, s.target, s.target.sign()),
    "ctc": lambda s: ctc(s, "mean"),
    "by hand": lambda s: (s.out - s.target).pow(2).mean(),
    "gather": lambda s: -s.out.log_softmax(1).gather(1, s.y[:, None]).mean(),
    "index": lambda s: -s.out.log_softmax(1)[torch.arange(s.samples), s.y].mean(),
    "sum of features, mean of samples": lambda s: (s.out - s.target).pow(2).sum(-1).mean(),
    "mean of samples, sum of features": lambda s: (s.out - s.target).pow(2).mean(0).sum(),
    "mean of masked means": lambda s: (
        (s.token_losses * s.mask).sum(1) / (s.mask.sum(1) + 1)
    ).mean(),
    "sum over length": lambda s: s.sum / len(s.x),
    "sum over length as tensor": lambda s: s.sum / torch.tensor(float(s.samples)),
    "sum times inverse length": lambda s: s.sum * (1 / len(s.x)),
    "half a sum over length": lambda s: 0.5 * (s.out - s.target).square().sum() / len(s.x),
    "losses over length": lambda s: (s.losses / len(s.x)).sum(),
    "sum over length and pieces": lambda s: s.sum / (len(s.x) * 4),
    "sum over length, scaled": lambda s: torch.tensor(65536.0) * (s.sum / len(s.x)),
    "sum over tokens": lambda s: s.token_losses.sum() / s.labels.numel(),
    "all tokens counted": lambda s: s.token_losses.sum() / (s.labels >= 0).sum(),
    "accumulated": lambda s: s.mean / 4,
    "scaled": lambda s: s.mean * torch.tensor(65536.0),
    "weighed": lambda s: s.mean * (s.samples / 64),
    "mean of one number": lambda s: s.mean.mean(),
    "reshaped": lambda s: s.mean.clone().view(1).squeeze().double(),
    "difference": lambda s: F.mse_loss(s.out, s.target) - 0.1 * s.mean,
    "one minus": lambda s: 1 - F.cosine_similarity(s.out, s.target).mean(),
    "stacked terms": lambda s: torch.stack([s.mean, F.mse_loss(s.out, s.target)]).sum(),
    "summed terms": lambda s: sum([s.mean, F.mse_loss(s.out, s.target)]),
    "with a penalty": lambda s: s.mean + 1e-4 * sum(p.pow(2).sum() for p in s.net.parameters()),
    "with a hundred penalties": lambda s: s.mean + sum(s.weight.pow(2).sum() for _ in range(100)),
    "with a norm": lambda s: s.mean + 1e-4 * s.weight.norm() + s.weight.abs().sum(),
    "with orthogonality": lambda s: s.mean + (s.weight @ s.weight.T - torch.eye(CLASSES)).norm(),
    "with a constant": lambda s: s.mean + 3.0,
    "with weights that are learned": lambda s: s.mean * (-s.net[2].bias[:1].sum()).exp(),
    "with experts": lambda s: s.mean + 0.01 * aux_of_experts(s),
    "vae": lambda s: vae(s, "mean"),
    "autocast": lambda s: autocast(s, F.mse_loss),
    "autocast of cross_entropy": lambda s: autocast(s, F.cross_entropy),
    "checkpointed": lambda s: checkpoint(
        lambda x: F.mse_loss(s.net(x), s.target), s.x, use_reentrant=False
    ),
    "custom function below": lambda s: F.mse_loss(Double.apply(s.out), s.target),
    "contrastive": lambda s: F.cross_entropy(
        torch.cat([s.out, s.out]) @ s.out.T, torch.arange(2 * s.samples) % s.samples
    ),
    "log-likelihood of a policy": lambda s: (
        -(torch.distributions.Categorical(logits=s.out).log_prob(s.y) * s.target[:, 0]).mean()
    ),
    "parameters only": lambda s: s.weight.pow(2).sum(),
    "nothing": lambda s: s.out.sum() * 0,
    "even weights": lambda s: (s.losses * torch.full((s.samples,), 1 / s.samples)).sum(),
}
SUMS = {
    "cross_entropy": lambda s: s.sum,
    "none and sum": lambda s: s.losses.sum(),
    "label smoothing": lambda s: F.cross_entropy(s.out, s.y, label_smoothing=0.1, reduction="sum"),
    "class weights": lambda s: F.cross_entropy(s.out, s.y, weight=s.class_weights, reduction="sum"),
    "ignored targets": lambda s: F.cross_entropy(
        s.token_scores, s.ignored.flatten(), reduction="sum"
    ),
    "tokens": lambda s: F.cross_entropy(s.token_scores, s.labels.flatten(), reduction="sum"),
    "masked": lambda s: s.token_losses[s.mask].sum(),
    "mse": lambda s: F.mse_loss(s.out, s.target, reduction="sum"),
    "l1": lambda s: F.l1_loss(s.out, s.target, reduction="sum"),
    "bce with logits": lambda s: F.binary_cross_entropy_with_logits(
        s.out, s.target, reduction="sum"
    ),
    "kl": lambda s: F.kl_div(s.out.log_softmax(1), s.target.softmax(1), reduction="sum"),
    "ctc": lambda s: ctc(s, "sum"),
    "by hand": lambda s: (s.out - s.target).pow(2).sum(),
    "by hand, features divided": lambda s: (s.out / 8 - s.target).pow(2).sum(),
    "mean of features, sum of samples": lambda s: (s.out - s.target).pow(2).mean(dim=1).sum(),
    "mean of tokens, sum of samples": lambda s: s.token_losses.mean(1).sum(),
    "over a constant": lambda s: s.sum / 30,
    "over a global count": lambda s: s.token_losses.sum() / torch.tensor(1000.0),
    "over a global count of kept targets": lambda s: (
        F.cross_entropy(s.token_scores, s.ignored.flatten(), reduction="sum")
        / (s.mask.sum() + 3)
        * 2
    ),
    "scaled": lambda s: s.sum * torch.tensor(65536.0),
    "vae": lambda s: vae(s, "sum"),
    "with a penalty": lambda s: s.sum + 1e-4 * s.weight.pow(2).sum(),
}
OTHERS = {
    "class weights": lambda s: F.cross_entropy(s.out, s.y, weight=s.class_weights),
    "class weights and label smoothing": lambda s: F.cross_entropy(
        s.out, s.y, weight=s.class_weights, label_smoothing=0.1
    ),
    "ignored targets": lambda s: F.cross_entropy(s.token_scores, s.ignored.flatten()),
    "ignored targets and label smoothing": lambda s: F.cross_entropy(
        s.token_scores, s.ignored.flatten(), label_smoothing=0.1
    ),
    "kept targets": lambda s: F.cross_entropy(s.token_scores[s.mask.flatten()], s.labels[s.mask]),
    "masked": lambda s: (s.token_losses * s.mask).sum() / s.mask.sum(),
    "mean of kept losses": lambda s: s.token_losses[s.mask].mean(),
    "sum over kept targets": lambda s: (
        F.cross_entropy(s.token_scores, s.ignored.flatten(), reduction="sum") / s.mask.sum()
    ),
    "mean and sum": lambda s: s.mean + F.mse_loss(s.out, s.target, reduction="sum"),
    "root of a mean": lambda s: F.mse_loss(s.out, s.target).sqrt(),
    "norm": lambda s: (s.out - s.target).norm(),
    "square of a mean": lambda s: s.out.mean(0).pow(2).sum(),
    "product": lambda s: s.mean * F.mse_loss(s.out, s.target),
    "dice": lambda s: 1 - (s.out * s.target).sum() / (s.out.sum() + s.target.sum()),
}
UNKNOWN = {
    "custom function": lambda s: Double.apply(s.mean),
    "custom function and mean": lambda s: s.mean + Double.apply(s.mean),
    "einsum": lambda s: torch.einsum("ij,ij->", s.out, s.target),
    "deviation": lambda s: s.out.std(),
    "one sample after the other": lambda s: (
        sum(F.cross_entropy(s.out[i : i + 1], s.y[i : i + 1]) for i in range(s.samples)) / len(s.x)
    ),
    "reentrant checkpoint": lambda s: checkpoint(
        lambda x: F.mse_loss(s.net(x), s.target), s.x.requires_grad_(), use_reentrant=True
    ),
    "weights that may hold the samples": lambda s: (s.losses * (s.target[:, 0] / s.samples)).sum(),
    "losses of all samples": lambda s: s.losses,
    "no graph": lambda s: s.mean.detach(),
    "too many terms": lambda s: sum([s.mean] * 70),
}
# Gradients that depend on the rest of the batch or on its size, and such as cannot be compared to
# rounding.
NOT_JOINED = {
    "autocast",
    "autocast of cross_entropy",
    "contrastive",
    "nothing",
    "over a global count of kept targets",
    "parameters only",
    "weighed",
    "with weights that are learned",
    "with a penalty",
}
TABLE = {
    (kind, name): make
    for kind, rows in (("mean", MEANS), ("sum", SUMS), ("other", OTHERS), (None, UNKNOWN))
    for name, make in rows.items()
}


def rows(*without):
    """Return the parameters of tests, one for each loss whose kind or name is not left out."""
    return [
        pytest.param(make, kind, id=f"{kind}: {name}")
        for (kind, name), make in TABLE.items()
        if kind not in without and name not in without
    ]


@pytest.mark.parametrize("samples", SIZES)
@pytest.mark.parametrize(("make", "kind"), rows())
def test_kind_follows_from_the_graph(make, kind, samples):
    loss = make(Setup(samples))
    assert verdict_of(loss, samples).kind == kind, verdict_of(loss, samples).reason


@pytest.mark.parametrize("make", MEANS.values(), ids=MEANS)
def test_mean_over_one_sample_is_never_a_sum(make):
    assert kind_of(make(Setup(8).part(slice(1))), 1) in ("mean", None)


@pytest.mark.parametrize(("make", "kind"), rows(None, *NOT_JOINED))
def test_gradients_of_two_batches_join_as_the_kind_says(make, kind):
    """This proves the table: sums add up, means by the number of samples, and others do neither."""
    joined = Setup(sum(SIZES)).double()
    parts = [joined.part(slice(SIZES[0])), joined.part(slice(SIZES[0], None))]
    whole, first, second = (gradient(part, make(part)) for part in (joined, *parts))
    mean = (SIZES[0] * first + SIZES[1] * second) / sum(SIZES)
    found = {
        "mean": torch.allclose(mean, whole, rtol=1e-9),
        "sum": torch.allclose(first + second, whole, rtol=1e-9),
    }
    assert found == {"mean": kind == "mean", "sum": kind == "sum"}


@pytest.mark.parametrize("samples", [1, 2, 3, 4, 5, 6, 10, 16, 30])
def test_wrong_verdicts_are_never_certain(samples):
    """Sizes that other numbers of the table happen to be equal to, or multiples of."""
    s = Setup(32).part(slice(samples))
    verdicts = {row: verdict_of(make(s), samples) for row, make in TABLE.items() if row[0]}
    certain = {row: v.kind for row, v in verdicts.items() if v.is_certain and v.kind}
    assert certain == {row: row[0] for row in certain}
    assert len(certain) > 0.8 * len(MEANS | SUMS | OTHERS)


def test_sum_over_a_constant_is_a_sum_once_the_size_has_changed():
    verdicts = [verdict_of(Setup(samples).sum / 8, samples) for samples in SIZES]
    assert [(v.kind, v.count, v.is_certain) for v in verdicts] == [
        ("mean", 8, False), ("sum", 8, False),
    ]  # fmt: skip
    check = LossCheck()
    for samples in (8, 8, 13):
        check.see(Setup(samples).sum / 8, samples)
    with pytest.raises(InvalidSetting, match="divided by 8"):
        check.see(Setup(13).sum / 8, 13)


def test_sum_over_a_number_of_tokens_that_was_read_is_no_sum():
    check = LossCheck()
    batches = [Setup(samples) for samples in SIZES]
    losses = [(s.token_losses * s.mask).sum() / s.mask.sum().item() for s in batches]
    check.see(losses[0], 8)
    with pytest.warns(UserWarning, match=r"balancer.weigh\(loss, count\)"):
        check.see(losses[1], 13)


def test_targets_ignored_alike_in_each_sample_leave_a_mean_that_is_not_certain():
    s = Setup(8)
    s.labels[:, -1] = -100
    verdict = verdict_of(F.cross_entropy(s.token_scores, s.labels.flatten()), 8)
    assert (verdict.kind, verdict.is_certain) == ("mean", False)


def test_long_chains_of_operators_on_each_value_are_not_followed_to_their_end():
    scores = Setup(8).out
    for _ in range(3000):
        scores = scores * 1.001 + scores.detach()
    assert [kind_of(scores.mean(), 8), kind_of(scores.sum(), 8)] == ["mean", "sum"]


def test_division_says_nothing_about_one_sample():
    scores = nn.Linear(3, 2)(torch.ones(1, 3))
    kinds = [kind_of(scores.square().sum() / divisor, 1) for divisor in (1, 4)]
    assert kinds == ["mean", None]


def test_count_of_other_losses_is_what_they_are_divided_by():
    s = Setup(8)
    names = ["ignored targets", "kept targets", "masked", "mean of kept losses"]
    counts = [verdict_of(OTHERS[name](s), 8).count for name in names]
    assert counts == [s.mask.sum()] * 4
    assert verdict_of(OTHERS["class weights"](s), 8).count == s.class_weights[s.y].sum()


def test_reason_names_what_was_found():
    s = Setup(8)
    assert verdict_of(s.sum, 8) == Verdict(
        "sum", "it is a sum over 8 values, which is not divided by their number"
    )
    assert verdict_of(s.token_losses[s.mask].mean(), 8).reason == (
        f"it is a mean over {s.mask.sum()} items, of 8 samples"
    )


@pytest.mark.parametrize("options", [{"find_unused_parameters": True}, {"static_graph": True}])
def test_loss_that_a_wrapped_model_returns_is_judged(options, process_group):
    class WithLoss(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Linear(4, CLASSES)
            self.register_full_backward_hook(lambda *_: None)

        def forward(self, x, y):
            scores = self.net(x)
            return scores, F.cross_entropy(scores, y, reduction="sum")

    s = Setup(8)
    model = nn.parallel.DistributedDataParallel(WithLoss(), **options)
    assert kind_of(model(s.x.requires_grad_(), s.y)[1], 8) == "sum"


def test_compiled_loss_is_unknown_and_a_loss_of_a_compiled_model_is_not():
    s = Setup(8)
    scores = torch.compile(s.net, backend="aot_eager")
    whole = torch.compile(lambda x: F.mse_loss(s.net(x), s.target), backend="aot_eager")
    assert kind_of(F.mse_loss(scores(s.x), s.target, reduction="sum"), 8) == "sum"
    assert kind_of(whole(s.x), 8) is None


def test_saved_tensors_are_not_unpacked():
    s = Setup(8)
    unpacked = []

    def unpack(tensor):
        unpacked.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: (tensor,), unpack):
        mean, divided = s.mean, s.sum / torch.tensor(8.0)
    verdicts = [verdict_of(mean, 8), verdict_of(divided, 8)]
    assert [(v.kind, v.is_certain) for v in verdicts] == [("mean", False), (None, True)]
    assert unpacked == []


def test_freed_graph_is_no_error():
    s = Setup(8)
    loss = s.sum / torch.tensor(8.0)
    loss.backward()
    assert kind_of(loss, 8) is None


@pytest.fixture
def process_group(tmp_path):
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1
    )
    yield
    torch.distributed.destroy_process_group()


@pytest.fixture(autouse=True)
def backward():
    """The original function, which every test has to leave in its place."""
    original = torch.autograd.backward
    yield original
    assert torch.autograd.backward is original


def test_watch_sees_each_loss_before_its_pass_until_it_is_closed():
    s = Setup(8)
    seen = []
    with LossWatch(lambda loss: seen.append((kind_of(loss, 8), s.weight.grad is None))):
        s.mean.backward()
        torch.autograd.backward([s.sum, s.mean])
        torch.autograd.backward(tensors=iter([s.sum]))  # type: ignore[arg-type]
    s.mean.backward()
    assert seen == [("mean", True), ("sum", False), ("mean", False), ("sum", False)]


def test_gradients_under_a_watch_are_the_same():
    s = Setup(8)
    plain = gradient(s, s.mean)
    with LossWatch(lambda loss: None):
        watched = gradient(s, s.mean)
    assert torch.equal(watched, plain)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_watches_close_in_any_order(order, backward):
    s = Setup(8)
    seen = []
    watches = [LossWatch(partial(lambda i, loss: seen.append(i), i)) for i in range(3)]
    for closing in order:
        assert torch.autograd.backward is not backward
        seen.clear()
        s.mean.backward()
        assert closing in seen
        watches[closing].close()
        watches[closing].close()
        seen.clear()
        s.mean.backward()
        assert closing not in seen
    assert seen == []


def test_error_of_the_watcher_reaches_the_caller_of_backward():
    s = Setup(8)

    def refuse(loss):
        raise ValueError("no")

    with LossWatch(refuse), pytest.raises(ValueError, match="no"):
        s.mean.backward()
    assert s.weight.grad is None
    s.mean.backward()
    assert s.weight.grad is not None


def test_watch_survives_an_error_of_backward():
    s = Setup(8)
    seen = []
    with LossWatch(lambda loss: seen.append(loss.shape)):
        with pytest.raises(RuntimeError, match="scalar"):
            s.losses.backward()
        s.mean.backward()
    assert seen == [(8,), ()]


def test_passes_within_a_pass_are_not_seen():
    s = Setup(8)
    seen = []
    with LossWatch(lambda loss: seen.append(loss)):
        scores = checkpoint(s.net, s.x.requires_grad_(), use_reentrant=True)
        F.mse_loss(scores, s.target).backward()
    assert len(seen) == 1


def test_tensor_subclass_is_seen_once():
    class Sub(torch.Tensor):
        pass

    s = Setup(8)
    seen = []
    with LossWatch(lambda loss: seen.append(kind_of(loss, 8))):
        s.mean.as_subclass(Sub).backward()
    assert seen == ["mean"]


def test_scaled_loss_is_seen_as_it_is():
    s = Setup(8)
    scaler = torch.amp.GradScaler("cpu")
    seen = []
    with LossWatch(lambda loss: seen.append(kind_of(loss, 8))):
        scaler.scale(s.mean).backward()
        scaler.scale(s.sum).backward()
    assert seen == ["mean", "sum"]


def test_losses_of_other_threads_are_seen():
    s = Setup(8)
    seen = []
    with LossWatch(lambda loss: seen.append(threading.get_ident())):
        thread = threading.Thread(target=lambda: s.mean.backward())
        thread.start()
        thread.join()
    assert seen == [thread.ident]


def test_watch_keeps_no_loss_alive():
    s = Setup(8)
    with LossWatch(lambda loss: verdict_of(loss, 8)):
        loss = s.mean
        reference = weakref.ref(loss)
        loss.backward()
        del loss
        gc.collect()
        assert reference() is None


def test_compiled_step_is_watched():
    s = Setup(8)
    seen = []

    @torch.compile(backend="eager")
    def step(x):
        F.mse_loss(s.net(x), s.target).backward()

    with LossWatch(lambda loss: seen.append(kind_of(loss, 8))):
        step(s.x)
    step(s.x)
    assert seen == ["mean"]


def test_function_that_others_have_wrapped_meanwhile_stays_theirs(backward, monkeypatch):
    s = Setup(8)
    seen = []
    first = LossWatch(lambda loss: seen.append(1))
    ours = torch.autograd.backward
    theirs = lambda *args, **options: ours(*args, **options)  # noqa: E731
    torch.autograd.backward = theirs
    second = LossWatch(lambda loss: seen.append(2))
    s.mean.backward()
    first.close()
    s.mean.backward()
    second.close()
    assert torch.autograd.backward is theirs
    s.mean.backward()
    assert seen == [2, 1, 2]
    torch.autograd.backward = backward

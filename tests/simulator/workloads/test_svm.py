"""Svmlight files and the linear SVM on them."""

import gzip

import numpy as np
import pytest
import torch

from evenstep.errors import DataFileError
from evenstep.simulator.workloads.registry import make_workload
from evenstep.simulator.workloads.svm import LinearMargin, LinearSvm, linear_svm, synthetic
from evenstep.simulator.workloads.svmlight import read_svmlight
from evenstep.simulator.workloads.workload import gradients

FILE = "# comment\n+1 1:0.5 3231961:1\n-1 7:2 # of a row\n\n+1\n-1 1:-1\n"


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "urls.svm"
    path.write_text(FILE)
    return path


def test_rows_and_labels_are_those_of_the_file(file):
    rows, labels = read_svmlight(file)
    assert labels.tolist() == [1, -1, 1, -1]
    assert rows.starts.tolist() == [0, 2, 3, 3, 4]
    assert rows.features.tolist() == [1, 3231961, 7, 1]
    assert rows.values.tolist() == [0.5, 1, 2, -1]


def test_a_gzipped_file_is_the_same(file, tmp_path):
    packed = tmp_path / "urls.svm.gz"
    packed.write_bytes(gzip.compress(FILE.encode()))
    one, other = read_svmlight(file), read_svmlight(packed)
    assert one[0].features.tolist() == other[0].features.tolist()


def test_the_beginning_of_a_file_can_be_read_alone(file):
    assert len(read_svmlight(file, most_rows=2)[0]) == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1 1:2\nx 1:2\n", "{}:2: a label must be a finite number, got 'x'"),
        ("nan 1:2\n", "{}:1: a label must be a finite number, got 'nan'"),
        (
            "1 5:x\n",
            "{}:1: an entry must be index:value, an index >= 0 and a finite value, got '5:x'",
        ),
        ("1 5\n", "{}:1: an entry must be index:value, an index >= 0 and a finite value, got '5'"),
        (
            "1 -1:2\n",
            "{}:1: an entry must be index:value, an index >= 0 and a finite value, got '-1:2'",
        ),
        (
            "1 2:inf\n",
            "{}:1: an entry must be index:value, an index >= 0 and a finite value, got '2:inf'",
        ),
        ("1 3:1 3:1\n", "{}:1: indices must rise within a line, got 3 after 3"),
        ("# nothing\n", "{}: a file of samples must have at least one, got none"),
    ],
)
def test_a_mistake_is_reported_with_its_line(tmp_path, text, message):
    path = tmp_path / "bad.svm"
    path.write_text(text)
    with pytest.raises(DataFileError) as caught:
        make_workload(f"svm:path={path}")
    assert str(caught.value) == message.format(path)


def test_binary_and_missing_files_are_refused(tmp_path):
    path = tmp_path / "a9a.gz"
    with pytest.raises(DataFileError, match=r"a9a\.gz: .*: No such file"):
        read_svmlight(path)
    path.write_bytes(b"plain")
    with pytest.raises(DataFileError, match=r"a9a\.gz: .*\btext\b.*\bgzip\b"):
        read_svmlight(path)


def test_there_must_be_two_classes(tmp_path):
    path = tmp_path / "one.svm"
    path.write_text("1 1:1\n1 2:1\n")
    with pytest.raises(DataFileError, match=r"one\.svm: .*two classes, got 1: 1$"):
        linear_svm(str(path))


def test_the_model_has_a_weight_for_every_feature_that_occurs_in_training(file, tmp_path):
    test = tmp_path / "test.svm"
    test.write_text("1 2:9 7:1\n-1 1:1\n")
    workload = make_workload(f"svm:path={file},test={test}")
    assert isinstance(workload, LinearSvm)
    assert workload.num_features == 3
    assert workload.labels.tolist() == [1, 0, 1, 0]
    model = workload.make_model(0)
    assert isinstance(model, LinearMargin)
    with torch.no_grad():
        model.weight[:] = torch.tensor([[1.0], [10.0], [100.0]])
    # Features 1, 7 and 3231961 in turn; the test's feature 2 is not known.
    assert model(workload.train.rows).tolist() == [100.5, 20.0, 0.0, -1.0]
    assert model(workload.test.rows).tolist() == [10.0, 1.0]


def test_the_gradient_is_that_of_the_dense_hinge_loss(file):
    workload = linear_svm(str(file), str(file), l2=0.0, dtype=torch.float64)
    model = workload.make_model(0)
    # At zero every sample is within the margin: minus the mean of label times values.
    weight, bias = gradients(workload, model, np.arange(4))
    np.testing.assert_allclose(weight.squeeze(1), [-(0.5 + 1) / 4, 2 / 4, -1 / 4])
    assert bias.item() == 0


def test_training_separates_the_classes():
    workload = make_workload("svm:seed=3")
    model = workload.make_model(0)
    before = workload.evaluate(model)
    rng = np.random.default_rng(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    for _ in range(100):
        optimizer.zero_grad()
        workload.loss(model, rng.integers(0, workload.num_samples, 128)).backward()
        optimizer.step()
    after = workload.evaluate(model)
    assert after.accuracy > 0.75 > 0.6 > before.accuracy
    assert after.loss < 0.7 * before.loss


def test_synthetic_samples_depend_on_the_seed_alone():
    first, again, other = (synthetic(seed) for seed in (1, 1, 2))
    assert (first.rows.values == again.rows.values).all()
    assert (first.is_second == again.is_second).all()
    assert len(first.rows.values) != len(other.rows.values)

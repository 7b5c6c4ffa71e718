"""Public data sets, if available: they have the documented numbers of samples."""

import os
from pathlib import Path

import numpy as np
import pytest

from evenstep.simulator.workloads.pictures import load_pictures
from evenstep.simulator.workloads.svmlight import read_svmlight

DATA = "EVENSTEP_DATA"
pytestmark = pytest.mark.skipif(
    DATA not in os.environ, reason=f"{DATA} does not name the folder of the full data"
)


@pytest.mark.parametrize(
    ("file", "num_rows", "num_features", "largest"),
    [
        ("svm_small/a9a.gz", 32561, 123, 123),
        ("svm_small/w8a.gz", 49749, 300, 300),
        ("malicious_url/url_excerpt.svm.gz", 5700, 37287, 3231949),
    ],
)
def test_svmlight_files(file, num_rows, num_features, largest):
    rows, labels = read_svmlight(Path(os.environ[DATA], file))
    assert (len(rows), len(labels)) == (num_rows, num_rows)
    assert (len(np.unique(rows.features)), rows.features.max()) == (num_features, largest)
    assert set(labels) == {-1, 1}


def test_cifar10():
    pictures = load_pictures(str(Path(os.environ[DATA], "cifar10", "cifar10_subset_10k_2k.npz")))
    assert (len(pictures.train), len(pictures.test)) == (10000, 2000)
    # The known values of the whole set, which a balanced part of it comes near.
    np.testing.assert_allclose(np.array(pictures.mean) / 255, [0.4914, 0.4822, 0.4465], atol=0.01)
    np.testing.assert_allclose(
        np.array(pictures.deviation) / 255, [0.2470, 0.2435, 0.2616], atol=0.01
    )

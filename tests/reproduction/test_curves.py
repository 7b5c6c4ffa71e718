"""Computation time against batch size, and its fits."""

import re

import numpy as np
import pytest

from evenstep.errors import DataFileError
from reproduction.experiments.gpu_curve import read_curves
from reproduction.fitting import fit_saturating
from tests.reproduction.tables import shapes

SIZES = np.array([16.0, 32.0, 64.0, 128.0, 256.0])


@pytest.mark.reproduction
def test_gpu_curves_have_the_shapes_of_the_paper(result):
    gpus = result("gpu-curve")
    assert {claim.name for claim in gpus.claims if claim.holds} == {
        "overhead", "saturation", "memory", "monotone", "order"
    }  # fmt: skip
    assert shapes(gpus) == [
        (
            "Overhead, seconds per sample and saturation, found by fit, and memory limit",
            "published",
            [
                "model",
                "GPU",
                "points",
                "overhead, ms",
                "ms per sample",
                "ms per sample, paper",
                "saturation x^s",
                "memory limit x^o",
                "r2",
            ],
        )
    ]
    seen = r"saturation on K80 \(CifarNet: 21\), .*none on the V100"
    assert any(re.search(seen, text) for text in gpus.differences)
    rows = [(row["model"], row["GPU"]) for row in gpus.tables[0].rows]
    kinds = ("V100", "M60", "K80", "K520")
    assert rows == [(model, gpu) for model in ("Inception-V3", "CifarNet") for gpu in kinds]


def test_line_is_preferred_to_a_threshold_that_explains_little():
    noise = 1 + 0.01 * np.random.default_rng(0).standard_normal(5)
    assert fit_saturating(SIZES, (0.1 + 0.01 * SIZES) * noise).saturation == 0


def test_saturation_is_found():
    fit = fit_saturating(SIZES, 0.1 + 0.01 * np.maximum(SIZES, 50))
    assert np.isclose(fit.saturation, 50, atol=3)


HEAD = "model,image_size,gpu,batchsize,batch_ms"


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("a,b\n1,2\n", "must be PROFET's latencies"),
        (f"{HEAD}\nCIFAR10_CNN,32,T4,16,abc\n", "must be PROFET's latencies"),
        (f"{HEAD}\nCIFAR10_CNN,32,T4\n", "must be PROFET's latencies"),
        (f"{HEAD}\nCIFAR10_CNN,32,V100,16,9\n", "must have times of .* on a T4 .*, got none"),
    ],
)
def test_other_files_are_refused(tmp_path, text, rule):
    path = tmp_path / "profet_batch_latency.csv"
    path.write_text(text)
    with pytest.raises(DataFileError, match=rule):
        read_curves(path)

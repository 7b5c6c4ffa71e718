"""``evenstep compare --engine ray``: the figures of real workers and their labels."""

import json

import pytest

from evenstep.cli.main import main

pytestmark = pytest.mark.timeout(300)

CLUSTER = """\
samples_per_worker = 8

[[workers]]
name = "slow"
speed = 20.0

[[workers]]
name = "fast"
speed = 60.0
"""


@pytest.fixture
def compared(local_ray, tmp_path, capsys):
    path = tmp_path / "cluster.toml"
    path.write_text(CLUSTER, encoding="utf-8")

    def run(*argv):
        how = ("--workload", "softmax:dtype=float64", "--iterations", "4", "--evaluate-every", "2")
        code = main(["compare", str(path), *how, *argv, "--json"])
        out, err = capsys.readouterr()
        assert (code, err) == (0, "")
        result = json.loads(out)
        return result["settings"], {each["scheme"]: each["seeds"][0] for each in result["schemes"]}

    return run


def test_emulated_workers_take_the_times_of_the_cluster(compared):
    schemes = "lb-bsp:static:shares=1/3"
    settings, emulated = compared("--engine", "ray", "--scale", "1", "--schemes", schemes)
    _, virtual = compared("--schemes", schemes)
    assert (settings["clock"], settings["time"]) == ("emulated", "emulated, the cluster's seconds")
    for name, seed in emulated.items():
        assert seed["curve"]["updates"] == virtual[name]["curve"]["updates"] == [0, 2, 4]
        assert seed["curve"]["loss"] == pytest.approx(virtual[name]["curve"]["loss"], rel=1e-9)
        assert seed["time"] >= 0.99 * virtual[name]["time"]
        assert (seed["faults"], seed["dropped"]) == ([], 0)


def test_workers_at_real_speed_have_real_seconds(compared):
    settings, real = compared("--engine", "ray", "--real-speeds", "--schemes", "asp")
    assert (settings["clock"], settings["time"]) == ("real", "real seconds")
    assert [seed["updates"] for seed in real.values()] == [4, 4]

"""``evenstep simulate``: what it prints, what it writes, and how it refuses."""

import errno
import json
import os
from pathlib import Path

import numpy as np
import pytest

from evenstep import runlog
from evenstep.policies import POLICIES, WRAPPERS
from evenstep.predictors import PREDICTORS
from tests.figures import numbers_in

COMMAND = "simulate"
EXAMPLES = Path(__file__).parents[2] / "examples" / "clusters"
DOCUMENTED = {
    "settle_5",
    "settle_2",
    "settle_5_after",
    "settle_2_after",
    "waste",
    "realised",
    "changes_per_100",
    "overruns",
    "final_sizes",
    "time_over_oracle",
    "time_over_bsp",
    "rmse",
    "waiting_share",
    "per_update_time",
}
SHARES = {"static": "static:shares=15/4/2/1"}
"""What has to be set of a policy before it can be made for four workers."""


def test_json_has_the_documented_figures_of_every_seed_and_their_medians(figures):
    result = figures("G", "--iterations", 60, "--seeds", "0-2")
    assert list(result) == ["headline", "seeds", "medians"]
    assert [seed["seed"] for seed in result["seeds"]] == [0, 1, 2]
    for seed in result["seeds"]:
        assert set(seed) == DOCUMENTED | {"seed"}
        assert sum(seed["final_sizes"]) == 128
    assert set(result["medians"]) == DOCUMENTED
    late = {"settle_5_after", "settle_2_after"}
    assert {result["medians"][name] for name in late} == {None}
    for name in DOCUMENTED - {"final_sizes"} - late:
        assert result["medians"][name] == np.median([seed[name] for seed in result["seeds"]]), name


def test_headline_has_the_gain_and_the_distance_to_the_oracle_with_their_ranges(figures, printed):
    run = ("G", "--iterations", 40, "--seeds", "0-2")
    result = figures(*run)
    head, seeds = result["headline"], result["seeds"]
    for name, values in {
        "gain": [1 / seed["time_over_bsp"] for seed in seeds],
        "above_optimum": [seed["time_over_oracle"] - 1 for seed in seeds],
        "waiting_share": [seed["waiting_share"] for seed in seeds],
    }.items():
        value, low, high = sorted(values)[1], min(values), max(values)
        assert head[name] == pytest.approx({"value": value, "low": low, "high": high}), name
    assert (head["optimum_is"], head["from_iteration"]) == ("oracle", 0)
    assert numbers_in(head["sentence"]) == pytest.approx(
        [3, *(round(head["gain"][name], 2) for name in ("value", "low", "high")),
         *(round(100 * head["above_optimum"][name], 1) for name in ("value", "low", "high"))]
    )  # fmt: skip
    lines = printed(*run).splitlines()
    assert lines.index(head["sentence"]) < lines.index(
        next(line for line in lines if line.startswith("figures"))
    )


@pytest.mark.parametrize(("iterations", "since"), [(500, 0), (501, 500)])
def test_learning_is_left_out_of_a_run_that_is_longer(figures, printed, iterations, since):
    run = ("P", "--workers", 2, "--iterations", iterations, "--predictor", "ema")
    assert figures(*run)["headline"]["from_iteration"] == since
    assert printed(*run).count("from iteration 500 on") == (2 if since else 0)


@pytest.mark.parametrize(("policy", "faster"), [("equal_finish", True), ("even", False)])
def test_headline_calls_only_what_is_faster_faster(figures, policy, faster):
    head = figures("G", "--iterations", 30, "--policy", policy)["headline"]
    assert ("faster" in head["sentence"], head["gain"]["value"] > 1) == (faster, faster)


def test_every_figure_in_the_documentation_is_printed():
    table = (EXAMPLES.parents[1] / "docs" / "simulate.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    assert {name.strip(" `") for row in rows for name in row.split(",")} == DOCUMENTED


def test_shares_are_fractions(figures):
    (seed,) = figures("G", "--noise-free", "--iterations", 100)["seeds"]
    assert 0 < seed["waste"] < 0.05
    assert seed["realised"] == pytest.approx(seed["waste"])
    assert 0 < seed["waiting_share"] < 0.2
    assert 1 <= seed["time_over_oracle"] < 1.05
    assert 0.3 < seed["time_over_bsp"] < 0.6


def test_noise_free_gpus_end_at_the_optimum(figures):
    (seed,) = figures("G", "--noise-free", "--iterations", 170)["seeds"]
    assert seed["final_sizes"] == [100, 8, 13, 7]
    assert (seed["settle_2"] <= 5, seed["settle_2_after"] <= 4) == (True, True)
    assert (seed["changes_per_100"], seed["overruns"]) == (0.0, 0)


def test_what_never_happened_is_null(figures):
    result = figures("G", "--policy", "even", "--iterations", 20)
    (seed,) = result["seeds"]
    for name in (
        "settle_5",
        "settle_2",
        "settle_5_after",
        "settle_2_after",
        "changes_per_100",
        "rmse",
    ):
        assert (seed[name], result["medians"][name]) == (None, None), name
    assert seed["time_over_bsp"] == 1.0


@pytest.mark.parametrize("scenario", ["G", "P", "identical"])
def test_single_iteration_has_figures_too(figures, scenario):
    (seed,) = figures(scenario, "--workers", 4, "--iterations", 1)["seeds"]
    assert len(seed["final_sizes"]) == 4
    assert seed["time_over_oracle"] >= 1


def test_same_seed_gives_the_same_bytes_and_another_one_others(printed):
    def run(seed):
        return printed("S", "--workers", 4, "--iterations", 30, "--json", "--seeds", seed)

    assert run(3) == run(3)
    assert json.loads(run(3))["medians"] != json.loads(run(4))["medians"]


def test_seed_of_a_range_is_the_same_as_alone(figures):
    run = ("S", "--workers", 4, "--iterations", 30)
    assert figures(*run, "--seeds", "2-4")["seeds"][1:2] == figures(*run, "--seeds", 3)["seeds"]


def test_delay_makes_plans_take_effect_late(figures):
    run = ("G", "--noise-free", "--iterations", 60)
    now, late = (figures(*run, "--delay", delay)["medians"] for delay in (0, 3))
    assert now["settle_5"] + 3 <= late["settle_5"]


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_runs(figures, policy):
    spec = SHARES.get(policy, policy)
    (seed,) = figures("G", "--policy", spec, "--iterations", 12)["seeds"]
    assert sum(seed["final_sizes"]) == 128


@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_every_wrapper_runs(figures, wrapper):
    (seed,) = figures("G", "--policy", f"equal_finish+{wrapper}", "--iterations", 12)["seeds"]
    assert sum(seed["final_sizes"]) == 128


@pytest.mark.parametrize("predictor", PREDICTORS)
def test_every_predictor_runs(figures, predictor):
    if predictor == "arima":
        pytest.importorskip("statsmodels")
    run = ("P", "--workers", 3, "--iterations", 12, "--predictor", predictor)
    (seed,) = figures(*run)["seeds"]
    assert sum(seed["final_sizes"]) == 384
    assert seed["rmse"] > 0


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*.toml")), ids=lambda file: file.stem)
def test_example_clusters_run(figures, file):
    (seed,) = figures(file, "--iterations", 15)["seeds"]
    assert seed["time_over_bsp"] < 1
    assert len(seed["final_sizes"]) > 4


def test_log_says_what_the_figures_say(figures, tmp_path):
    path = tmp_path / "run.jsonl"
    result = figures("G", "--iterations", 40, "--seeds", "5-6", "--log", path)
    log = runlog.read(path)
    assert (log.complete, log.ended, log.num_iterations) == (True, True, 40)
    assert (log.header.seed, log.header.policy, log.header.total) == (5, "equal_finish", 128)
    sizes = log.matrix("batch_sizes")
    assert sizes[-1].tolist() == result["seeds"][0]["final_sizes"]
    assert sizes.sum(axis=1).tolist() == [128] * 40
    per_update = log.iteration_times.mean() / 4
    assert per_update == pytest.approx(result["seeds"][0]["per_update_time"])
    np.testing.assert_allclose(np.diff(log.starts), log.iteration_times[:-1], atol=2e-6)
    waiting = log.matrix("waiting").sum() / (4 * log.iteration_times.sum())
    assert waiting == pytest.approx(result["seeds"][0]["waiting_share"])
    plans = log.events_of("plan")
    assert plans[-1].iteration == 1 + np.flatnonzero(np.diff(sizes, axis=0).any(axis=1))[-1]


def test_log_does_not_change_the_figures(printed, tmp_path):
    run = ("P", "--workers", 3, "--iterations", 20, "--json")
    assert printed(*run, "--log", tmp_path / "run.jsonl") == printed(*run)


def test_plot_is_a_picture(printed, tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "run.png"
    out = printed("G", "--iterations", 20, "--plot", path)
    assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert f"plot: {path}" in out


def test_output_away_from_a_terminal_is_plain_text(printed):
    out = printed("G", "--iterations", 20, "--seeds", "0-1")
    assert "\x1b" not in out
    assert out.splitlines()[0].startswith(
        "G: 4 workers, equal_finish, seed 0: the last 2 iterations"
    )
    assert "medians of 2 seeds" in out
    for worker in ("V100", "M60", "K80", "K520"):
        assert worker in out


def test_simulated_figures_are_called_simulated(printed):
    out = printed("G", "--iterations", 20)
    assert out.count("(simulated") == 2


def test_run_on_a_terminal_is_shown_live(shown):
    text = shown("G", "--iterations", 20)
    assert "oracle" in text
    assert "iteration 20" in text
    assert "20/20" in text
    assert "\x1b[?25h" in text
    assert "Traceback" not in text


MISTAKES = {
    "no cluster": (
        (),
        "give a cluster: one of A, B, G, P, S, M, identical, or a cluster file; got none",
    ),
    "scenario": (
        ("X",),
        "cluster must be one of A, B, G, P, S, M, identical, or a cluster file, got 'X'",
    ),
    "policy": (
        ("G", "--policy", "fair"),
        f"policy must be one of {', '.join(POLICIES)}, got 'fair'",
    ),
    "wrapper": (
        ("G", "--policy", "even+often"),
        f"wrapper must be one of {', '.join(WRAPPERS)}, got 'often'",
    ),
    "predictor": (
        ("P", "--predictor", "crystal_ball"),
        f"predictor must be one of {', '.join(PREDICTORS)}, got 'crystal_ball'",
    ),
    "predictor that is not needed": (
        ("G", "--predictor", "crystal_ball"),
        f"predictor must be one of {', '.join(PREDICTORS)}, got 'crystal_ball'",
    ),
    "setting": (
        ("P", "--predictor", "ema:alfa=1"),
        "a setting of 'ema' must be one of alpha, got 'alfa' (did you mean 'alpha'?)",
    ),
    "setting without a value": (
        ("G", "--policy", "stepwise:step"),
        "settings of 'stepwise' must be setting=value, got 'step'",
    ),
    "value of a setting": (
        ("P", "--predictor", "ema:alpha=7"),
        "alpha of ema must be in (0, 1], got 7",
    ),
    "shares": (
        ("G", "--policy", "static:shares=1/2"),
        "static shares must be one per worker (4), got 2",
    ),
    "workers of G": (
        ("G", "--workers", "5"),
        "scenario G has as many workers of each of 4 kinds: their number must be a multiple of 4, "
        "got 5",
    ),
    "no workers": (
        ("G", "--workers", "0"),
        "argument --workers: must be a whole number >= 1, got '0'",
    ),
    "workers of a file": (
        ("c.toml", "--workers", "4"),
        "a number of workers goes with a scenario; c.toml has its own workers",
    ),
    "no iterations": (
        ("G", "--iterations", "0"),
        "argument --iterations: must be a whole number >= 1, got '0'",
    ),
    "seeds": (("G", "--seeds", "0..7"), "seeds must be like 0-7 or 1,4,9, got '0..7'"),
    "no seeds": (("G", "--seeds", ""), "seeds must be like 0-7 or 1,4,9, got ''"),
    "falling seeds": (("G", "--seeds", "7-0"), "seeds must rise, got '7-0'"),
    "delay": (("G", "--delay", "-1"), "argument --delay: must be a whole number >= 0, got '-1'"),
    "limits": (
        ("G", "--policy", "even+limited:maximum=10"),
        "the batch size caps of 4 workers add up to 40, less than the total 128",
    ),
}


@pytest.mark.parametrize(("argv", "message"), MISTAKES.values(), ids=MISTAKES)
def test_mistake_on_the_command_line_is_told(refused, argv, message):
    assert refused(*argv) == message


@pytest.mark.parametrize("option", ["--log", "--plot"])
def test_file_that_cannot_be_written_is_told(refused, tmp_path, option):
    path = tmp_path / "nowhere" / "run.png"
    message = refused("G", "--iterations", 3, option, path)
    assert message == f"{path}: {os.strerror(errno.ENOENT)}"


def test_picture_of_an_unknown_kind_is_told(refused, tmp_path):
    path = tmp_path / "run.xyz"
    message = refused("G", "--iterations", 3, "--plot", path)
    assert message == f"a plot must be a .png or .svg file, got '{path}'"


CLUSTER = """\
samples_per_worker = 32

[[workers]]
name = "old"
speed = 60.0
"""


@pytest.mark.parametrize(
    ("right", "wrong", "line"),
    [
        ("60.0", "-60.0", 5),
        ("60.0", "'fast'", 5),
        ("speed = 60.0", "speed = ", 5),
        ("speed", "sped", 5),
        ("samples_per_worker", "samples", 1),
        ("speed = 60.0", "table = 'missing.csv'", 5),
    ],
)
def test_mistake_in_a_cluster_file_is_told_with_its_place(refused, tmp_path, right, wrong, line):
    path = tmp_path / "cluster.toml"
    path.write_text(CLUSTER.replace(right, wrong), encoding="utf-8")
    assert f"{path}:{line}: " in refused(path)


def test_cluster_file_of_the_mistakes_is_good_without_them(figures, tmp_path):
    path = tmp_path / "cluster.toml"
    path.write_text(CLUSTER, encoding="utf-8")
    (seed,) = figures(path, "--iterations", 3)["seeds"]
    assert seed["final_sizes"] == [32]


def test_cluster_file_that_is_not_there_is_told(refused, tmp_path):
    path = tmp_path / "cluster.toml"
    message = refused(path)
    assert message.startswith(f"{path}: ") and message.endswith(f": {os.strerror(errno.ENOENT)}")

"""``evenstep compare``: what it prints and writes, against a cluster worked out by hand."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from evenstep.cli.main import main
from evenstep.simulator.clusters.registry import make_cluster
from evenstep.simulator.engine.comparison import MOST_UPDATES, Comparison

COMMAND = "compare"
DOCS = Path(__file__).parents[2] / "docs" / "compare.md"

HAND_WORKED = """\
samples_per_worker = 30
iterations = 6

[[workers]]
name = "slow"
speed = 10.0

[[workers]]
name = "fast"
speed = 30.0
"""
"""An even batch takes 3 s on one worker and 1 s on the other."""

TRAINED = ("--workload", "softmax", "--iterations", 4, "--evaluate-every", 2)
SETTINGS = {
    "clock", "time", "cluster", "cluster_name", "num_workers", "total", "noisy", "workload",
    "optimizer", "partition", "shards", "target", "iterations", "stops_at_target",
    "per_update_from", "evaluate_every", "smoothed_over", "seeds", "interval_covers",
}  # fmt: skip
SCHEME = {
    "scheme", "workers", "total", "policy", "predictor", "weighted", "medians", "intervals", "seeds"
}  # fmt: skip
FIGURES = {
    "time_per_update", "updates_to_target", "time_to_target", "final_accuracy", "final_loss",
    "per_update_over_bsp", "updates_over_bsp", "time_over_bsp", "updates", "time", "staleness",
    "dropped",
}  # fmt: skip
SEQUENTIAL = {
    f"{name}_over_sequential_bsp" for name in ("per_update", "updates", "time")
}  # fmt: skip


@pytest.fixture
def cluster(tmp_path):
    path = tmp_path / "cluster.toml"
    path.write_text(HAND_WORKED, encoding="utf-8")
    return path


def by_scheme(result):
    return {scheme["scheme"]: scheme for scheme in result["schemes"]}


@pytest.fixture
def medians(figures):
    """The medians of each scheme."""

    def run(*argv):
        return {name: scheme["medians"] for name, scheme in by_scheme(figures(*argv)).items()}

    return run


# Seconds until the 12th gradient, worked out by hand. Under SSP with a bound of 2 the fast worker's
# come at 1, 2, 4, 7, 10, ... and the slow one's every 3 s. A backup that is like the fast worker
# makes every iteration last 1 s; balanced sizes are 15 and 45.
TIMES = {
    "bsp": 6 * 3.0,
    "asp": 9.0,
    "ssp:bound=2": 16.0,
    "ssp:bound=1": 6 * 3.0,
    "backup:like=fast": 6 * 1.0,
    "backup:like=slow": 6 * 3.0,
    "lb-bsp:oracle": 6 * 1.5,
}


def test_times_are_those_worked_out_by_hand(medians, cluster):
    argv = (cluster, "--workload", "none", "--schemes", ",".join(TIMES))
    result = medians(*argv)
    assert list(result) == list(TIMES)
    for name, time in TIMES.items():
        assert result[name]["time"] == pytest.approx(time), name
        assert result[name]["time_per_update"] == pytest.approx(time / 6), name
        assert result[name]["per_update_over_bsp"] == pytest.approx(time / TIMES["bsp"]), name


def test_backups_drop_a_gradient_each_and_asp_works_with_old_parameters(medians, cluster):
    result = medians(cluster, "--workload", "none", "--schemes", "asp,backup:like=fast")
    assert [result[name]["dropped"] for name in result] == [0, 0, 6]
    # Three gradients of the slow worker lack 2, 3 and 3 of the fast one's; each time, the one of
    # the fast worker that comes in at the same moment lacks the slow one's.
    assert [result[name]["staleness"] for name in result] == [0, pytest.approx(11 / 12), 0]


def test_flexrr_is_compared_with_bsp_that_processes_one_sample_at_a_time(figures, cluster):
    text = HAND_WORKED.replace("speed = 30.0", "curve = { overhead = 0.9, per_sample = 0.1 }")
    cluster.write_text(text, encoding="utf-8")
    costless = "flexrr:monitoring=0,moving=0"
    argv = (cluster, "--workload", "none", "--schemes")
    alone = by_scheme(figures(*argv, costless))
    assert list(alone) == ["bsp", costless]
    assert not SEQUENTIAL & set(alone[costless]["medians"])
    result = by_scheme(figures(*argv, f"asp,{costless},sequential-bsp"))
    assert list(result) == ["bsp", "asp", costless, "sequential-bsp"]
    for name, scheme in result.items():
        is_sequential = name in ("sequential-bsp", costless)
        assert set(scheme["medians"]) == FIGURES | (SEQUENTIAL if is_sequential else set()), name
    # A batch of 30 takes 3 and 3.9 s; sample by sample 30 times 0.1 and 1 s.
    one_by_one = result["sequential-bsp"]["medians"]
    assert one_by_one["per_update_over_bsp"] == pytest.approx(30 / 3.9)
    assert one_by_one["per_update_over_sequential_bsp"] == 1
    # Shared out, 60 samples at 10 and 1 per second, and in the end somebody may have one more.
    flexrr = result[costless]["medians"]
    assert 60 / 11 <= 30 * flexrr["per_update_over_sequential_bsp"] < 60 / 11 + 2
    seconds = 30 * flexrr["per_update_over_sequential_bsp"]
    assert flexrr["per_update_over_bsp"] == pytest.approx(seconds / 3.9)


def test_json_has_the_documented_schema(figures):
    argv = ("--target", 0.3, "--seeds", "1-3", "--schemes", "asp,lb-bsp,flexrr,sequential-bsp")
    result = figures(*TRAINED, *argv)
    assert list(result) == ["settings", "schemes", "best"]
    assert set(result["settings"]) == SETTINGS
    assert result["settings"]["seeds"] == [1, 2, 3]
    assert "simulated" in result["settings"]["time"]
    for scheme in result["schemes"]:
        assert set(scheme) == SCHEME
        names = set(scheme["medians"]) - SEQUENTIAL
        assert names == FIGURES
        for seed, number in zip(scheme["seeds"], (1, 2, 3), strict=True):
            assert set(seed) - SEQUENTIAL == FIGURES | {"seed", "curve", "faults"}
            assert (seed["seed"], seed["updates"]) == (number, 4)
            curve = seed["curve"]
            assert curve["updates"] == [0, 2, 4]
            assert curve["time"][-1] == seed["time"]
            assert curve["accuracy"][-1] == seed["final_accuracy"]
            assert curve["smoothed"][-1] == pytest.approx(np.mean(curve["accuracy"]))
        for name in ("time_per_update", "final_loss", "per_update_over_bsp"):
            values = [seed[name] for seed in scheme["seeds"]]
            assert scheme["medians"][name] == np.median(values)
            assert scheme["intervals"][name] == [min(values), max(values)]


def test_everything_in_json_is_documented():
    text = DOCS.read_text(encoding="utf-8")
    for name in SETTINGS | SCHEME | FIGURES | SEQUENTIAL | {"curve", "smoothed", "faults", "best"}:
        assert f"`{name}`" in text, name


def test_same_seed_gives_the_same_bytes_and_another_one_others(printed):
    def run(seed):
        return printed(*TRAINED, "--schemes", "asp,backup,lb-bsp", "--seeds", seed, "--json")

    assert run(3) == run(3)
    assert by_scheme(json.loads(run(3))) != by_scheme(json.loads(run(4)))


def test_seed_of_a_range_is_the_same_as_alone(figures):
    argv = (*TRAINED, "--schemes", "ssp")
    several, alone = (
        by_scheme(figures(*argv, *seed)) for seed in (("--seeds", "2-3"), ("--seeds", 3))
    )
    assert several["ssp"]["seeds"][1:] == alone["ssp"]["seeds"]


def test_lb_bsp_trains_as_bsp_does_unless_it_is_unweighted(medians):
    static = "lb-bsp:static:shares=8/4/2/1"
    result = medians(*TRAINED, "--schemes", f"{static},{static},unweighted")
    losses = [scheme["final_loss"] for scheme in result.values()]
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    assert abs(losses[2] - losses[0]) > 1e-4
    assert result[static]["per_update_over_bsp"] < 1


def test_target_that_was_not_reached_has_no_figures(figures, printed):
    argv = (*TRAINED, "--target", 0.999, "--schemes", "asp")
    for scheme in figures(*argv)["schemes"]:
        for values in (scheme["medians"], *scheme["seeds"]):
            for name in (
                "updates_to_target",
                "time_to_target",
                "updates_over_bsp",
                "time_over_bsp",
            ):
                assert values[name] is None
        assert scheme["intervals"]["time_to_target"] == [None, None]
    assert printed(*argv, "--seeds", 0).count("not reached") == 4


def test_several_seeds_are_the_default_and_one_is_enough_if_it_is_given(figures, cluster):
    argv = (cluster, "--workload", "none", "--schemes", "asp")
    assert figures(*argv)["settings"]["seeds"] == list(range(20))
    assert figures(*argv, "--seeds", 7)["settings"]["seeds"] == [7]


def test_target_is_reached_by_the_mean_of_five_evaluations(figures):
    argv = ("--workload", "softmax", "--iterations", 60, "--target", 0.8, "--schemes", "asp")
    settings, schemes, _ = figures(*argv, "--seeds", "0-1").values()
    for seed in (seed for scheme in schemes for seed in scheme["seeds"]):
        curve = seed["curve"]
        means = [np.mean(curve["accuracy"][max(0, i - 4) : i + 1]) for i in range(13)]
        assert curve["smoothed"] == pytest.approx(means)
        reached = next(i for i, mean in enumerate(means) if mean >= 0.8)
        assert seed["updates_to_target"] == curve["updates"][reached]
        assert seed["time_to_target"] == curve["time"][reached]
    assert settings["smoothed_over"] == 5


def test_scheme_is_the_best_only_if_intervals_do_not_overlap(figures, cluster):
    argv = (cluster, "--workload", "none", "--seeds")
    # In seconds of an update, worked out by hand: 3, 1.5, 1 and 1.
    clear = figures(*argv, "0-5", "--schemes", "asp,backup:like=fast")
    assert clear["best"] == {"per_update_over_bsp": ["backup:like=fast"]}
    same = figures(*argv, "0-5", "--schemes", "backup:like=fast,backup:like=fast,backups=1")
    assert same["best"] == {
        "per_update_over_bsp": ["backup:like=fast", "backup:like=fast,backups=1"]
    }


def test_too_few_seeds_call_no_scheme_the_best(figures, printed, cluster):
    argv = (cluster, "--workload", "none", "--schemes", "asp", "--seeds")
    assert [figures(*argv, seeds)["best"] is None for seeds in ("0-4", "0-5")] == [True, False]
    assert "Best time per update: asp" in printed(*argv, "0-5")
    assert "Best time" not in printed(*argv, "0-4")


def test_every_column_says_which_way_is_better(printed):
    out = printed(*TRAINED, "--target", 0.3, "--schemes", "asp", "--seeds", "0-5")
    assert (out.count("(lower"), out.count("(higher"), out.count("is better)")) == (6, 1, 7)


def test_picture_has_intervals_and_says_which_way_is_better(printed, tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "compare.svg"
    out = printed(*TRAINED, "--target", 0.3, "--schemes", "asp", "--seeds", "0-5", "--plot", path)
    drawn = path.read_text(encoding="utf-8")
    assert drawn.count("lower is better") == 3
    assert drawn.count("(higher is better)") == 1
    verdicts = [line for line in out.splitlines() if line.startswith("Best ")]
    assert len(verdicts) == 4
    # A band for each of two schemes in both panels.
    assert len(re.findall(r"FillBetweenPolyCollection|PolyCollection_", drawn)) == 4


def test_run_stops_at_the_target_unless_told_how_long_it_is(figures):
    argv = ("--workload", "softmax", "--target", 0.3, "--schemes", "bsp", "--seeds", 0)
    stopped = figures(*argv)
    (seed,) = stopped["schemes"][0]["seeds"]
    assert (stopped["settings"]["stops_at_target"], seed["updates"]) == (True, 5)
    assert stopped["settings"]["iterations"] == MOST_UPDATES
    longer = figures(*argv, "--iterations", 10)
    (further,) = longer["schemes"][0]["seeds"]
    assert (longer["settings"]["stops_at_target"], further["updates"]) == (False, 10)
    assert further["time_to_target"] == seed["time_to_target"] == seed["time"]


def test_total_is_kept_with_backups_beside(figures):
    argv = ("--total", 16, "--schemes", "backup:backups=2", "--workload", "none", "--iterations", 2)
    bsp, backup = figures(*argv)["schemes"]
    assert (bsp["total"], backup["total"]) == (16, 24)
    assert backup["workers"] == [*bsp["workers"], "backup-0", "backup-1"]


def test_skewed_partitions_change_what_is_trained_on(medians):
    argv = (*TRAINED, "--schemes", "asp")
    shared, skewed, mixed = (
        medians(*argv, *partition)
        for partition in ((), ("--partition", "by_speed"), ("--partition", "dirichlet:alpha=9"))
    )
    for scheme in shared:
        assert len({result[scheme]["final_loss"] for result in (shared, skewed, mixed)}) == 3
        assert shared[scheme]["time"] == skewed[scheme]["time"]


def test_optimizer_and_learning_rate_reach_the_server(figures):
    argv = (*TRAINED, "--schemes", "bsp")
    used = [
        figures(*argv, *how)["settings"]["optimizer"]
        for how in (
            (),
            ("--optimizer", "momentum"),
            ("--optimizer", "adam", "--learning-rate", 0.02),
            ("--optimizer", "sgd:weight_decay=0.1", "--learning-rate", 1),
        )
    ]
    assert used == [
        "sgd:learning_rate=0.3",
        "sgd:momentum=0.9,learning_rate=0.05",
        "adam:learning_rate=0.02",
        "sgd:weight_decay=0.1,learning_rate=1.0",
    ]


def test_gradients_are_computed_by_as_many_threads_as_were_asked_for(figures, cluster):
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    try:
        for asked, used in [([], 1), (["--threads", "2"], 2)]:
            figures(cluster, "--schemes", "bsp", "--iterations", "1", *asked)
            assert torch.get_num_threads() == used
    finally:
        torch.set_num_threads(before)


def test_data_is_read_from_a_path(figures, tmp_path):
    path = tmp_path / "a, b.svm"
    rng = np.random.default_rng(0)
    rows = [f"{1 if x > 0 else -1} 1:{x:.3f} 2:{y:.3f}" for x, y in rng.normal(size=(60, 2))]
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    argv = ("--workload", "svm", "--data", path, "--iterations", 20, "--schemes", "asp")
    result = figures(*argv, "--total", 8)
    assert [scheme["medians"]["final_accuracy"] > 0.7 for scheme in result["schemes"]] == [True] * 2


def test_table_says_what_ran_and_that_it_is_simulated(printed):
    out = printed(*TRAINED, "--target", 0.3, "--schemes", "lb-bsp", "--seeds", "0-1")
    lines = out.splitlines()
    what = re.escape(f"{make_cluster('A:4').name}: 4 workers, 128 samples ")
    assert re.fullmatch(what + r".*; softmax-digits, sgd:learning_rate=0\.3", lines[0])
    assert re.fullmatch(r".*\b2 seeds, 4 updates; .*\bvirtual time, simulated", lines[1])
    assert "\x1b" not in out
    assert "to 30%" in out


def test_timing_only_runs_where_torch_is_not_installed(cluster):
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from evenstep.cli.main import main\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    argv = ["compare", str(cluster), "--workload", "none"]
    done = subprocess.run(
        [sys.executable, "-c", code, *argv],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    assert "timing-only: nothing is trained" in done.stdout


@pytest.mark.parametrize("trained", [True, False])
def test_plot_is_a_picture(printed, cluster, tmp_path, trained):
    pytest.importorskip("matplotlib")
    path = tmp_path / "compare.png"
    argv = (*TRAINED, "--target", 0.999) if trained else ("--workload", "none")
    out = printed(cluster, *argv, "--seeds", "0-1", "--plot", path)
    assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert f"plot: {path}" in out


def test_plot_names_schemes_and_says_what_its_times_are(printed, cluster, tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "compare.svg"
    printed(cluster, "--workload", "none", "--schemes", "asp", "--plot", path)
    drawn = path.read_text(encoding="utf-8")
    for text in ("asp", "bsp", "virtual time, simulated", "time per update / BSP"):
        assert f"<!-- {text}" in drawn or text in drawn, text


def test_run_on_a_terminal_is_shown_live(shown, cluster):
    text = shown(cluster, "--workload", "none", "--schemes", "asp", "--seeds", 0)
    assert "asp, seed 0 (virtual time, simulated)" in text
    assert "2/2" in text
    assert "6/6" in text
    assert "\x1b[?25h" in text
    assert "Traceback" not in text


TIMING = ("--workload", "none")
MISTAKES = {
    "cluster": (
        ("X",),
        "cluster must be one of A, B, G, P, S, M, identical, or a cluster file, got 'X'",
    ),
    "workload": (
        ("--workload", "gpt"),
        "workload must be one of softmax, mlp, svm, cifarnet, resnet32, inception_v3, got 'gpt'",
    ),
    "scheme": (
        ("--schemes", "bsp,psp"),
        "scheme must be one of bsp, asp, ssp, backup, flexrr, lb-bsp, sequential-bsp, got 'psp'",
    ),
    "engine": ((*TIMING, "--engine", "steam"), "engine must be one of virtual, ray, got 'steam'"),
    "address of virtual time": (
        (*TIMING, "--address", "10.0.0.1:6379"),
        "--address, --scale and --real-speeds go with --engine ray, got 'virtual'",
    ),
    "two speeds": (
        ("--engine", "ray", "--scale", 1, "--real-speeds"),
        "argument --real-speeds: not allowed with argument --scale",
    ),
    "timing-only on Ray": (
        (*TIMING, "--engine", "ray"),
        "a workload is needed on Ray: only virtual time runs without one",
    ),
    "FlexRR on Ray": (
        ("--workload", "softmax", "--engine", "ray", "--schemes", "flexrr"),
        "scheme on Ray must not be flexrr: its workers move samples in the middle of a gradient, "
        "which only the virtual engine supports",
    ),
    "oracle on Ray": (
        ("--workload", "softmax", "--engine", "ray", "--schemes", "lb-bsp:oracle"),
        "policy on Ray must not be oracle: the noise of the coming iteration is known in virtual "
        "time only",
    ),
    "policy": (
        (*TIMING, "--schemes", "lb-bsp:fair"),
        "policy must be one of even, static, proportional, cautious, stepwise, "
        "equal_finish, got 'fair'",
    ),
    "shares": (
        (*TIMING, "--schemes", "lb-bsp:static:shares=1/2"),
        "static shares must be one per worker (4), got 2",
    ),
    "target": (("--target", 1.5), "argument --target: must be a number > 0, up to 1, got '1.5'"),
    "target of nothing": ((*TIMING, "--target", 0.9), "a target goes with a workload, got none"),
    "partition of nothing": (
        (*TIMING, "--partition", "by_speed"),
        "a partition goes with a workload, got none",
    ),
    "partition": (
        ("--workload", "softmax", "--partition", "fair"),
        "partition must be one of by_speed, dirichlet, got 'fair'",
    ),
    "data of nothing": (
        (*TIMING, "--data", "here"),
        "--data goes with a workload, got none for 'here'",
    ),
    "optimizer of nothing": (
        (*TIMING, "--optimizer", "adam"),
        "--optimizer goes with a workload, got none for 'adam'",
    ),
    "learning rate of nothing": (
        (*TIMING, "--learning-rate", 0.1),
        "--learning-rate goes with a workload, got none for 0.1",
    ),
    "shards of nothing": (
        (*TIMING, "--shards", 2),
        "--shards goes with a workload, got none for 2",
    ),
    "predictor of nobody": (
        (*TIMING, "--schemes", "asp", "--predictor", "ema"),
        "--predictor goes with lb-bsp:proportional, got no such scheme for 'ema'",
    ),
    "predictor of a policy that predicts nothing": (
        (*TIMING, "--schemes", "lb-bsp:equal_finish", "--predictor", "ema"),
        "--predictor goes with lb-bsp:proportional, got no such scheme for 'ema'",
    ),
    "setting twice": (
        (*TIMING, "--schemes", "ssp:bound=3,bound=4"),
        "settings of 'ssp' must be given once each, got 'bound' twice",
    ),
    "data that is not read": (
        ("--workload", "softmax", "--data", "here"),
        "a setting of 'softmax' must be one of dtype, got 'path'",
    ),
    "data twice": (
        ("--workload", "svm:path=there", "--data", "here"),
        "path of svm must be given once, got 'here' too",
    ),
    "optimizer": (
        ("--optimizer", "lion"),
        "optimizer must be one of sgd, momentum, adam, got 'lion'",
    ),
    "learning rate": (
        ("--learning-rate", 0),
        "argument --learning-rate: must be a number > 0, got '0'",
    ),
    "learning rate twice": (
        ("--optimizer", "sgd:learning_rate=1", "--learning-rate", 2),
        "learning_rate of sgd must be given once, got 2.0 too",
    ),
    "total with backups": (
        (*TIMING, "--total", 10),
        "with backups the total must be a multiple of the 4 workers, got 10",
    ),
    "seeds": ((*TIMING, "--seeds", "0..7"), "seeds must be like 0-7 or 1,4,9, got '0..7'"),
    "plot": ((*TIMING, "--plot", "run.xyz"), "a plot must be a .png or .svg file, got 'run.xyz'"),
}


def test_partition_of_a_later_seed_is_looked_at_before_the_first_runs(refused, monkeypatch):
    def run(*args):
        raise AssertionError("nothing may run before all was looked at")

    monkeypatch.setattr(Comparison, "run", run)
    skewed = ("--workload", "softmax", "--partition", "dirichlet:alpha=0.02", "--schemes", "bsp")
    # With seed 3 one worker would hold nothing.
    told = refused(*skewed, "--seeds", "2,3")
    assert re.fullmatch(r"partition of worker \d .*\bempty, got none", told)


@pytest.mark.parametrize(("argv", "message"), MISTAKES.values(), ids=MISTAKES)
def test_mistake_on_the_command_line_is_told(refused, argv, message):
    assert refused(*argv) == message


def test_command_is_listed(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "compare" in capsys.readouterr().out

"""Figures of trainings over each other, and trainings that are taken up again."""

from evenstep.simulator.engine.comparison import Comparison
from reproduction.parts import NO_PARTS, Parts
from reproduction.training import Trained, over, train


def trained(per_update=1.0, accuracy=(0.1, 0.5, 0.9)):
    updates = [0, 10, 20][: len(accuracy)]
    times = [per_update * count for count in updates]
    return Trained(per_update, updates, times, list(accuracy), [1.0] * len(updates), 4, 0.0)


def test_updates_and_time_to_a_target_are_those_of_the_first_evaluation_that_shows_it():
    assert trained(per_update=2.0).reached(0.5) == (10, 20.0)
    assert trained().reached(0.95) is None


def test_ratios_are_medians_over_seeds_of_the_same_seed():
    runs = {
        "bsp": [trained(4.0), trained(2.0), trained(1.0)],
        "other": [trained(2.0), trained(2.0), trained(3.0)],
    }
    assert over(runs, "bsp", "per_update") == {"bsp": 1.0, "other": 1.0}
    assert over(runs, "bsp", "time", 0.9)["other"] == 1.0


def test_target_that_most_seeds_do_not_reach_has_no_ratio():
    lame = trained(accuracy=(0.1, 0.2, 0.3))
    runs = {"bsp": [trained()] * 3, "other": [lame, lame, trained()]}
    assert over(runs, "bsp", "updates", 0.9) == {"bsp": 1.0, "other": None}


def test_trainings_that_are_kept_are_not_made_again(tmp_path):
    comparison = Comparison("G", iterations=5)
    told = []

    def tell(share, text):
        told.append(text)

    first = train("times", comparison, "asp", [0], Parts(tmp_path), tell)
    assert [text for text in told if "update" not in text] == [
        "times, bsp, 0", "times, asp, 0", ""
    ]  # fmt: skip
    kept = {path: path.read_text() for path in tmp_path.iterdir()}
    assert len(kept) == 2
    for path, text in kept.items():
        path.write_text(text.replace('"num_workers": 4', '"num_workers": 5'))
    again = train("times", comparison, "asp", [0], Parts(tmp_path), tell)
    assert [runs[0].num_workers for runs in again.values()] == [5, 5]
    assert [runs[0].per_update for runs in again.values()] == [
        runs[0].per_update for runs in first.values()
    ]


def test_training_with_other_settings_is_not_taken_for_this_one(tmp_path):
    made = [
        train("times", comparison, "bsp", [0], Parts(tmp_path), lambda *told: None)["bsp"][0]
        for comparison in (Comparison("G", iterations=5), Comparison("G", iterations=5, total=64))
    ]
    assert made[0].per_update > made[1].per_update


def test_what_is_known_is_taken_and_not_trained(tmp_path):
    known, told = {"bsp": [trained()]}, []

    def tell(share, text):
        told.append(text)

    comparison = Comparison("G", iterations=5)
    runs = train("times", comparison, "asp", [0], Parts(tmp_path), tell, known)
    assert [text for text in told if "update" not in text] == ["times, asp, 0", ""]
    assert list(runs) == ["bsp", "asp"]
    assert runs["bsp"] == known["bsp"]


def test_every_update_of_a_training_moves_the_bar():
    told = []

    def tell(share, text):
        told.append((share, text))

    train("times", Comparison("G", iterations=2), "asp", [0], NO_PARTS, tell)
    assert told == [
        (0.0, "times, bsp, 0"),
        (0.25, "times, bsp, 0: update 1 of 2"),
        (0.5, "times, bsp, 0: update 2 of 2"),
        (0.5, "times, asp, 0"),
        (0.75, "times, asp, 0: update 1 of 2"),
        (1.0, "times, asp, 0: update 2 of 2"),
        (1.0, ""),
    ]

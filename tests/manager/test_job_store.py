"""The saved jobs of a manager."""

import json
import re
from errno import ENOSPC

import numpy as np
import pytest

from evenstep.core.archive import write_archive
from evenstep.errors import StateFileError
from evenstep.manager import job_store
from evenstep.manager.job import UNSAVED, Job
from evenstep.manager.job_settings import JobSettings
from evenstep.manager.job_store import LARGEST_NUMBER, _parse, load_all, path_of, save
from evenstep.manager.jobs import Jobs
from tests.damaged import damaged
from tests.manager.managers import said


def trained_job(settings):
    job = Job("a.job@x:1", settings)
    for worker in ("w0", "w1"):
        job.join(worker, 0, 5.0, now=0.0)
    for k, speeds in enumerate([(None, None), (10.0, 20.0), (10.0, 30.0)]):
        for worker, speed in zip(("w0", "w1"), speeds, strict=True):
            job.report(said(worker, k, speed), None, now=0.0)
    return job


@pytest.mark.parametrize("predictor", ["ema", "best_of"])
@pytest.mark.parametrize("policy", ["proportional", "equal_finish", "stepwise", "even"])
def test_job_is_the_same_after_a_restart(tmp_path, policy, predictor):
    job = trained_job(JobSettings(2, 60, policy, predictor))
    save(tmp_path, job.saved())
    (found,) = load_all(tmp_path, complain=pytest.fail)
    again = Job.restored(found, now=100.0)
    assert (again.name, again.settings, again.workers) == (job.name, job.settings, job.workers)
    assert again.iteration == job.iteration == 3
    assert again.expire(now=104.0) == []
    for either in (job, again):
        for worker, speed in (("w0", 12.0), ("w1", 24.0)):
            either.report(said(worker, 3, speed), None, now=101.0)
    plans = [either.plan_for(3) for either in (job, again)]
    made = [plan.sizes.tolist() for plan in plans if plan is not None]
    assert made == [made[0]] * 2


def test_new_plan_after_a_restart_has_no_number_of_one_made_after_the_save(tmp_path):
    job = trained_job(JobSettings(2, 60, "proportional", "ema"))
    save(tmp_path, job.saved())
    (found,) = load_all(tmp_path, complain=pytest.fail)
    again = Job.restored(found, now=100.0)
    assert job.session is not None and again.session is not None
    # A plan that all workers hold keeps its number.
    assert again.session.plan.number == job.session.plan.number == 2
    for either, speed in ((job, 60.0), (again, 90.0)):
        for worker, v in (("w0", 12.0), ("w1", speed)):
            either.report(said(worker, 3, v), None, now=101.0)
    assert job.session.plan.number == 3
    assert again.session.plan.number == 2 + UNSAVED
    # A number that a worker reports does not lower it either.
    again.session.renumber(5)
    assert again.session.plan.number == 2 + UNSAVED


def test_manager_that_is_killed_twice_before_it_saves_gives_no_number_twice(tmp_path):
    job = trained_job(JobSettings(2, 60, "proportional", "ema"))
    save(tmp_path, job.saved())
    numbers = []
    for speed in (60.0, 90.0):
        # Later plans are never saved.
        jobs = Jobs(tmp_path)
        jobs.recover(now=100.0)
        again = jobs.find(job.name)
        for worker, v in (("w0", 12.0), ("w1", speed)):
            again.report(said(worker, 3, v), None, now=101.0)
        assert again.session is not None
        numbers.append(again.session.plan.number)
        jobs.close()
    assert numbers == [2 + UNSAVED, 2 + 2 * UNSAVED]


def test_new_run_after_a_restart_has_numbers_of_its_own(tmp_path):
    job = trained_job(JobSettings(2, 60, "proportional", "ema"))
    for worker in ("w0", "w1"):
        job.leave(worker)
    save(tmp_path, job.saved())
    (found,) = load_all(tmp_path, complain=pytest.fail)
    again = Job.restored(found, now=100.0)
    for worker in ("w0", "w1"):
        again.join(worker, 0, 5.0, now=100.0)
    assert again.session is not None and again.session.plan.number == 2 + UNSAVED


def test_flipped_bit_is_found_or_harmless(tmp_path):
    job = trained_job(JobSettings(2, 60, "proportional", "ema"))
    save(tmp_path, job.saved())
    content = path_of(tmp_path, job.name).read_bytes()
    found = 0
    for at in range(0, len(content), 13):
        flipped = content[:at] + bytes([content[at] ^ 4]) + content[at + 1 :]
        try:
            saved = _parse(flipped)
        except StateFileError:
            found += 1
        else:
            ours, theirs = saved.running, job.saved().running
            assert ours is not None and theirs is not None
            for name, array in ours.state.items():
                np.testing.assert_array_equal(theirs.state[name], array)
            assert "own.number" in ours.state
    assert found > len(content) / 13 / 3


def test_damaged_job_is_set_aside_or_restored_as_one_that_can_go_on(tmp_path):
    job = trained_job(JobSettings(2, 60, "equal_finish", "ema"))
    save(tmp_path, job.saved())
    path = path_of(tmp_path, job.name)
    with np.load(path) as archive:
        arrays = {name: archive[name] for name in archive.files if name != "checksum"}
    settings = json.loads(str(arrays.pop("settings")))
    refused = 0
    for what, changed in damaged({"settings": settings, **arrays}):
        try:
            text = np.array(json.dumps(changed["settings"]))
            content = {name: np.asarray(array) for name, array in changed.items()}
            write_archive(path, {**content, "settings": text})
        except (KeyError, TypeError, ValueError):
            # Nothing that could be in a file.
            continue
        jobs = Jobs(tmp_path)
        jobs.recover(now=100.0)
        jobs.close()
        for again in jobs:
            assert again.iteration >= 0, what
            if again.session is not None:
                assert int(again.session.plan.sizes.sum()) == again.settings.total, what
        if not list(jobs):
            refused += 1
            assert not path.exists()
    assert refused > 150
    assert len(list(tmp_path.glob("*.damaged-*"))) == refused


def test_names_of_jobs_have_files_of_their_own(tmp_path):
    names = ["a", "A", "a.b", "a:b", "a-b", "a@b", "_", "x" * 128, "x" + ":" * 127]
    paths = {path_of(tmp_path, name) for name in names}
    assert len(paths) == len(names)
    assert {path.parent for path in paths} == {tmp_path}
    for name in names:
        save(tmp_path, Job(name, JobSettings(1, 8)).saved())
    assert sorted(s.job for s in load_all(tmp_path, complain=pytest.fail)) == sorted(names)


@pytest.mark.parametrize("change", ["folder", "no number", "no such worker", "leases"])
def test_file_that_cannot_be_used_keeps_no_manager_from_starting(tmp_path, change, caplog):
    good, bad = (Job(name, JobSettings(2, 60, "proportional", "ema")) for name in ("good", "bad"))
    for job in (good, bad):
        for worker in ("w0", "w1"):
            job.join(worker, 0, 5.0, now=0.0)
        save(tmp_path, job.saved())
    path = path_of(tmp_path, "bad")
    if change == "folder":
        path.unlink()
        path.mkdir()
    else:
        # Like the file of another version: complete, but different.
        with np.load(path) as archive:
            arrays = {name: archive[name] for name in archive.files if name != "checksum"}
        if change == "no number":
            del arrays["running.state.own.number"]
        elif change == "no such worker":
            arrays["running.workers"] = np.array(["w0"])
        else:
            settings = json.loads(str(arrays["settings"]))
            arrays["settings"] = np.array(json.dumps({**settings, "leases": [5.0]}))
        write_archive(path, arrays)
    jobs = Jobs(tmp_path)
    jobs.recover(now=0.0)
    jobs.close()
    assert [job.name for job in jobs] == ["good"]
    assert not path.exists() and path.with_name(f"{path.name}.damaged-1").exists()
    assert caplog.text.count(f"is now {path.name}.damaged-1") == 1


def test_full_disk_is_reported_once_and_tried_until_it_is_not(tmp_path, monkeypatch, caplog):
    jobs = Jobs(tmp_path)
    jobs.recover(now=0.0)
    jobs.create("j", JobSettings(2, 60))
    with monkeypatch.context() as full:
        full.setattr(job_store, "save", lambda *_: (_ for _ in ()).throw(OSError(ENOSPC, "full")))
        for _ in range(3):
            jobs.write(jobs.changed())
    assert (jobs.unwritten, jobs.num_write_failures) == ({"j"}, 3)
    assert len(re.findall(r"job j cannot be saved\b.*\[Errno 28\] full", caplog.text)) == 1
    jobs.write(jobs.changed())
    assert jobs.unwritten == set() and jobs.changed() == []
    assert re.search(r"job j .*\bsaved again", caplog.text)
    jobs.close()


def test_saved_plan_number_that_no_manager_can_have_given_is_healed(tmp_path):
    job = trained_job(JobSettings(2, 60, "proportional", "ema"))
    assert job.session is not None
    job.session.renumber(2**53)
    save(tmp_path, job.saved())
    jobs = Jobs(tmp_path)
    jobs.recover(now=100.0)
    again = jobs.find(job.name)
    for k in (3, 4, 5):
        assert again.session is not None
        held = again.session.plan.number
        assert LARGEST_NUMBER <= held < 2 * LARGEST_NUMBER
        for worker, speed in (("w0", 12.0 * k), ("w1", 24.0)):
            again.report(said(worker, k, speed), held, now=101.0)
    jobs.close()

"""Quotas and limits of control groups, from trees of files as both versions have them."""

import pytest

from evenstep.measure.cgroups import (
    cpu_pressure_file,
    cpu_quota,
    memory_limit,
    stalled_seconds,
)


def write(folder, **files):
    """Write files; underscores after the first word of a name stand for themselves."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(f"{text}\n")


@pytest.fixture
def root(tmp_path):
    return tmp_path / "cgroup"


@pytest.fixture
def groups(tmp_path):
    return tmp_path / "self"


def test_v2_quota_and_limit_of_the_tightest_group_hold(root, groups):
    groups.write_text("0::/jobs/train\n")
    write(root / "jobs/train", cpu__max="max 100000", memory__max="max", memory__current=100)
    write(root / "jobs", cpu__max="150000 100000", memory__max=4000, memory__current=1000)
    assert cpu_quota(root, groups) == 1.5
    limit = memory_limit(root, groups)
    assert limit is not None
    assert (limit.limit, limit.used()) == (4000, 1000)


def test_v1_quota_and_limit_hold(root, groups):
    groups.write_text("4:memory:/job\n3:cpuset:/\n1:cpu,cpuacct:/job\n")
    write(root / "cpu,cpuacct/job", cpu__cfs_quota_us=2500, cpu__cfs_period_us=10000)
    write(root / "memory/job", memory__limit_in_bytes=2048, memory__usage_in_bytes=512)
    assert cpu_quota(root, groups) == 0.25
    limit = memory_limit(root, groups)
    assert limit is not None
    assert (limit.limit, limit.used()) == (2048, 512)


def test_controllers_mounted_by_their_single_name_are_found(root, groups):
    groups.write_text("1:cpu,cpuacct:/job\n")
    write(root / "cpu/job", cpu__cfs_quota_us=5000, cpu__cfs_period_us=10000)
    assert cpu_quota(root, groups) == 0.5


def test_group_seen_from_inside_its_container_has_its_files_at_the_root(root, groups):
    groups.write_text("1:cpu:/docker/abc\n0::/\n")
    write(root / "cpu", cpu__cfs_quota_us=5000, cpu__cfs_period_us=10000)
    assert cpu_quota(root, groups) == 0.5


def test_without_quota_or_limit_there_is_none(root, groups):
    groups.write_text("4:memory:/\n1:cpu:/\n0::/\n")
    write(root / "cpu", cpu__cfs_quota_us=-1, cpu__cfs_period_us=100000)
    write(root, cpu__max="max 100000")
    assert cpu_quota(root, groups) is None
    assert memory_limit(root, groups) is None


@pytest.mark.parametrize("text", ["", "nonsense", "100000", "a b"])
def test_files_that_make_no_sense_are_no_quota(root, groups, text):
    groups.write_text("0::/\nnonsense\n")
    write(root, cpu__max=text, memory__max=text)
    assert cpu_quota(root, groups) is None
    if not text.isdecimal():
        assert memory_limit(root, groups) is None


def test_machine_without_control_groups_has_neither(tmp_path):
    assert cpu_quota(tmp_path / "none", tmp_path / "nothing") is None
    assert memory_limit(tmp_path / "none", tmp_path / "nothing") is None


def test_pressure_of_the_group_comes_before_the_machines(root, groups, tmp_path):
    machine = tmp_path / "pressure"
    assert cpu_pressure_file(root, groups, machine) is None
    machine.write_text("some avg10=1.00 avg60=0.00 avg300=0.00 total=2500000\n")
    assert cpu_pressure_file(root, groups, machine) == machine
    assert stalled_seconds(machine) == 2.5
    groups.write_text("0::/job\n")
    write(root / "job", cpu__pressure="full total=1\nsome avg10=1.00 total=500000")
    file = cpu_pressure_file(root, groups, machine)
    assert file == root / "job/cpu.pressure"
    assert stalled_seconds(root / "job/cpu.pressure") == 0.5

"""``evenstep doctor``: what it finds here, and what it says where something is missing."""

import json
import re
import shutil
import sys
from importlib import metadata
from importlib.util import find_spec

import pytest

from evenstep.cli import doctor, doctor_checks
from evenstep.cli.doctor_checks import MARKS, Finding
from evenstep.cli.main import EXTRAS, main
from evenstep.errors import EvenstepError

COMMAND = "doctor"


@pytest.fixture
def without(monkeypatch):
    """Makes packages look as if they were not installed."""

    def hide(*names):
        def look(name, *rest):
            return None if name in names else find_spec(name, *rest)

        for module in (doctor_checks, doctor):
            monkeypatch.setattr(module, "find_spec", look)

    return hide


def findings_of(capsys, *argv):
    code = main(["doctor", "--json", *argv])
    data = json.loads(capsys.readouterr().out)
    return code, data["works"], {found["subject"]: found for found in data["findings"]}


@pytest.mark.distributed
def test_balanced_training_is_tried_for_real(capsys):
    code, works, found = findings_of(capsys)
    assert (code, works) == (0, True)
    assert "two processes trained" in found["training"]["text"]
    assert found["process groups"]["state"] == "ok" and "gloo" in found["process groups"]["text"]
    assert {"evenstep", "numpy", "torch", "cores", "clock", "throttling", "GPUs"} <= set(found)
    assert all(finding["state"] in MARKS for finding in found.values())


def test_without_torch_it_says_so_and_fails(capsys, without):
    without("torch")
    code, works, found = findings_of(capsys)
    assert (code, works) == (1, False)
    assert found["torch"] == {
        "subject": "torch",
        "state": "broken",
        "text": "not installed (extra torch)",
        "remedy": "pip install 'evenstep[torch]'",
    }
    assert found["training"]["state"] == "broken" and "not tried" in found["training"]["text"]
    assert "GPUs" not in found


def test_what_others_need_is_lacking_and_breaks_nothing(without):
    without("thriftpy2", "matplotlib")
    found = {finding.subject: finding for finding in doctor_checks.check_packages()}
    assert found["thriftpy2"].state == found["matplotlib"].state == "lacking"
    assert found["matplotlib"].remedy == "pip install 'evenstep[plots]'"
    assert found["numpy"].state == "ok"
    assert {package for package in EXTRAS if package != "tomli"} <= set(found)


def test_old_version_is_told(monkeypatch):
    monkeypatch.setattr(metadata, "version", lambda name: "1.2.3+cpu")
    monkeypatch.setattr(metadata, "requires", lambda name: ["torch>=1.10; x"])
    found = {finding.subject: finding for finding in doctor_checks.check_packages()}
    assert found["torch"].state == "broken"
    assert re.fullmatch(r"1\.2\.3\+cpu, .*older than 1\.10", found["torch"].text)
    assert found["rich"].state == "ok"


@pytest.mark.parametrize("address, said", [("127.0.1.1", True), ("10.0.0.7", False)])
def test_a_host_name_that_others_do_not_reach_is_named(monkeypatch, address, said):
    monkeypatch.setattr("socket.gethostname", lambda: "node7")
    monkeypatch.setattr("socket.gethostbyname", lambda name: address)
    found = doctor_checks._host_name()
    assert found.state == "ok"
    assert f"node7 is {address}" in found.text
    assert ("set GLOO_SOCKET_IFNAME" in found.text) is said


def test_findings_are_printed_with_what_to_do(capsys, without, monkeypatch):
    without("torch")
    assert main(["doctor"]) == 1
    lines = capsys.readouterr().out.splitlines()
    at = lines.index("[!!] torch: not installed (extra torch)")
    assert lines[at + 1] == "     -> pip install 'evenstep[torch]'"
    assert re.search(r"\bdoes not work\b", lines[-1])


@pytest.mark.distributed
def test_processes_that_hang_are_ended_and_told(monkeypatch):
    found = doctor._trial(timeout=0.5)
    assert found.state == "broken"
    assert re.search(r"did not end .*\b0\.5 s", found.text)


def test_torch_that_does_not_load_is_told(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    [found] = doctor._torch(timeout=10)
    assert found.state == "broken" and found.text.startswith("does not load")


@pytest.mark.parametrize(
    ("sizes", "difference", "state"),
    [([20, 12], 1e-8, "ok"), ([16, 16], 1e-8, "lacking"), ([20, 12], 0.1, "broken"),
     ([20, 13], 1e-8, "broken"), ([20, 12], float("nan"), "broken")],
)  # fmt: skip
def test_trial_is_judged_by_its_sizes_and_parameters(sizes, difference, state):
    outcome = {"total": 32, "batch_sizes": sizes, "largest_difference": difference}
    assert doctor._judged(outcome, took=1.0).state == state


def test_gpus_without_nccl_are_told():
    device = {"name": "A100", "gib": 80.0}
    facts = {"backends": {"gloo": True, "nccl": False}, "devices": [device], "cuda": ""}
    found = doctor._devices(facts)
    assert found.state == "lacking" and "A100 (80 GiB), without nccl" in found.text
    assert doctor._backends({"backends": {"gloo": False}}).state == "broken"


def test_what_is_not_allowed_is_lacking_and_says_why(monkeypatch):
    class Refused:
        def __init__(self, shares):
            raise EvenstepError("CPUs cannot be throttled here: not root")

    monkeypatch.setattr(doctor_checks, "Throttles", Refused)
    monkeypatch.setattr(shutil, "which", lambda tool: None)
    found = {finding.subject: finding for finding in doctor_checks.check_machine()}
    assert found["throttling"].state == "lacking" and "not root" in found["throttling"].text
    assert found["network namespaces"].text == "unshare is not installed"
    assert all(isinstance(finding, Finding) for finding in found.values())

"""The house itself: what is public, what importing it loads, and what the wheel holds."""

import json
import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import numpy
import pytest

import evenstep

ROOT = Path(__file__).parent.parent
FRAMEWORKS = ["torch", "tensorflow", "jax", "mxnet", "ray"]
OPTIONAL = [
    "simpy", "rich", "matplotlib", "statsmodels", "scipy", "pandas", "thriftpy2", "psutil",
    "sklearn", "starlette", "uvicorn",
]  # fmt: skip


def run(*command: object, cwd: Path = ROOT) -> str:
    """Run a command away from this process and its settings, and return what it prints."""
    # Without the machine's pip settings and our PYTHONPATH: what is not there must not be found.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env={**env, "PIP_CONFIG_FILE": os.devnull},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_public_names_exist_and_are_listed_once():
    names = evenstep.__all__
    assert [name for name in names if not hasattr(evenstep, name)] == []
    assert len(names) == len(set(names))


def test_dir_holds_public_names_dunder_names_and_loaded_submodules_only():
    submodules = {name.split(".")[1] for name in sys.modules if name.startswith("evenstep.")}
    dunders = {name for name in dir(evenstep) if name.startswith("__") and name.endswith("__")}
    assert set(dir(evenstep)) - dunders - submodules == set(evenstep.__all__) - dunders
    assert set(evenstep.__all__) <= set(dir(evenstep))


def test_old_name_of_the_planner_says_the_new_ones():
    with pytest.raises(AttributeError, match=r"Planner.*evenstep\.pytorch\.Balancer"):
        evenstep.Balancer  # noqa: B018


@pytest.mark.parametrize("module", ["evenstep", "evenstep.cli.main"])
def test_import_loads_no_framework(module):
    loaded = run(sys.executable, "-W", "error", "-c", f"import sys, {module}; print(*sys.modules)")
    assert set(loaded.split()) & {*FRAMEWORKS, *OPTIONAL} == set()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel as users get it: made from the source distribution, which is made from the tree."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder)
    (path,) = folder.glob("*.whl")
    return path


def test_wheel_holds_the_package_and_nothing_else(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    metadata = f"evenstep-{evenstep.__version__}.dist-info"
    assert {name.partition("/")[0] for name in names} == {"evenstep", metadata}
    assert {"evenstep/py.typed", "evenstep/manager/manager.thrift"} <= set(names)
    assert "evenstep/partitions/agents/agent.thrift" in names
    page = {
        path.relative_to(ROOT).as_posix()
        for path in ROOT.glob("evenstep/insight/dashboard/assets/*")
    }
    assert "evenstep/insight/dashboard/assets/main.js" in page <= set(names)
    data = {
        path.relative_to(ROOT).as_posix()
        for path in ROOT.glob("evenstep/simulator/clusters/data/*")
    }
    assert "evenstep/simulator/clusters/data/SOURCE.md" in data <= set(names)
    assert f"{metadata}/licenses/LICENSE" in names
    # The paper's experiments are run from a checkout.
    assert [name for name in names if "reproduc" in name] == []
    ours = {path.relative_to(ROOT).as_posix() for path in (ROOT / "evenstep").rglob("*.py")}
    assert {name for name in names if name.endswith(".py")} == ours


def test_wheel_works_where_only_numpy_is_installed(wheel, tmp_path):
    bare = tmp_path / "bare"
    venv.create(bare, symlinks=True)
    python = bare / "bin" / "python"
    packages = Path(
        run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    )
    for path in Path(numpy.__file__).parent.parent.glob("numpy*"):
        (packages / path.name).symlink_to(path)

    # With no index to ask, this fails as soon as the core needs anything but numpy.
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python]
    run(*pip, "install", "--quiet", "--no-index", wheel)

    code = "import evenstep; print(evenstep.__file__, evenstep.__version__)"
    file, version = run(python, "-W", "error", "-c", code, cwd=tmp_path).split()
    assert Path(file).is_relative_to(packages)
    assert version == evenstep.__version__
    printed = run(bare / "bin" / "evenstep", "--version", cwd=tmp_path)
    assert printed == f"evenstep {version}\n"


def test_no_file_knows_more_of_the_others_than_a_reader_can_hold():
    house = json.loads(run(sys.executable, ROOT / "scripts" / "house", "--json"))
    body, total = house["without_trainers"], house["total"]
    assert body["files"] <= 330
    assert body["median_imports"] <= 3
    assert total["most_imports"] <= 20, total["most_imports_in"]
    assert total["files"] == sum(room["files"] for room in house["packages"].values())
    # A trainer is a few files that know little more than the PyTorch adapter.
    assert total["files"] - body["files"] <= 25
    for trainer in ("run", "accelerate", "transformers", "lightning", "ray_train"):
        assert house["packages"][trainer]["most_imports"] <= 8
    assert house["packages"]["core"]["imports"] == ["errors"]

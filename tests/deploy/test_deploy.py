"""The examples of deployment: they say what their programs understand, and fit together.

Those that start a training run in tests/hosts/test_deploy_files.py.
"""

import argparse
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from evenstep.cli import manager
from evenstep.errors import InvalidSetting
from evenstep.manager.access import check_exposure, parse_address, read_token

DEPLOY = Path(__file__).parents[2] / "deploy"
UNIT = DEPLOY / "evenstep-manager.service"


def parsed(words):
    """Return the options of a command line, as the manager reads them."""
    parser = argparse.ArgumentParser(exit_on_error=False)
    manager.add_arguments(parser)
    assert words[0] == "manager"
    return parser.parse_args(words[1:])


def check_addresses(args):
    """Refuse what the manager refuses: an address of others without token and TLS."""
    assert not args.insecure
    for address in (args.listen, args.http):
        host, _ = parse_address(address)
        check_exposure(host, bool(args.token_file), bool(args.tls_cert and args.tls_key), False)


def unit():
    """Return the settings of the unit by section and name, with all values of each."""
    text = re.sub(r"\\\n\s*", " ", UNIT.read_text())
    sections: dict[str, dict[str, list[str]]] = {}
    section: dict[str, list[str]] = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        if line.startswith("["):
            section = sections.setdefault(line.strip("[]"), {})
        elif not line.startswith("#"):
            name, _, value = line.partition("=")
            section.setdefault(name, []).append(value)
    return sections


def documents():
    found = list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()))
    return {(one["kind"], one["metadata"]["name"]): one for one in found}


def pod():
    return documents()["Deployment", "evenstep-manager"]["spec"]["template"]["spec"]


def test_unit_starts_the_manager_with_options_that_it_takes():
    program, *words = shlex.split(unit()["Service"]["ExecStart"][0])
    assert program.endswith("/evenstep")
    args = parsed(words)
    check_addresses(args)
    assert (args.action, args.log_format) == (None, "json")


def test_unit_gives_the_manager_every_file_that_it_is_told_to_use():
    service = unit()["Service"]
    args = parsed(shlex.split(service["ExecStart"][0])[1:])
    credentials = {value.partition(":")[0] for value in service["LoadCredential"]}
    wanted = {args.token_file, args.tls_cert, args.tls_key}
    assert wanted == {f"%d/{name}" for name in credentials}
    assert str(args.state) == f"%S/{service['StateDirectory'][0]}"
    assert str(args.logs) == f"%L/{service['LogsDirectory'][0]}"


def test_unit_is_hardened_and_restarts():
    service = unit()["Service"]
    for name in ("DynamicUser", "NoNewPrivileges", "ProtectHome", "PrivateTmp"):
        assert service[name] == ["yes"]
    assert service["ProtectSystem"] == ["strict"]
    assert service["Restart"] == ["on-failure"]


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="there is no systemd-analyze")
def test_systemd_accepts_the_unit(tmp_path):
    # With a program that is there: that it is installed is not what is tested.
    copy = tmp_path / UNIT.name
    copy.write_text(UNIT.read_text().replace("/opt/evenstep/bin/evenstep", "/bin/true"))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", copy], capture_output=True, text=True, timeout=60
    )
    complaints = [line for line in done.stderr.splitlines() if UNIT.name in line]
    assert (done.returncode, complaints) == (0, [])


def test_container_starts_the_manager_with_options_that_it_takes():
    (container,) = pod()["containers"]
    args = parsed(container["args"])
    check_addresses(args)
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"thrift": parse_address(args.listen)[1], "http": parse_address(args.http)[1]}


def test_every_file_of_the_container_comes_from_a_volume_that_exists():
    found, (container,) = documents(), pod()["containers"]
    volumes = {volume["name"]: volume for volume in pod()["volumes"]}
    mounts = {mount["mountPath"]: volumes[mount["name"]] for mount in container["volumeMounts"]}
    args = parsed(container["args"])
    for path in map(Path, (args.token_file, args.tls_cert, args.tls_key)):
        secret = found["Secret", mounts[str(path.parent)]["secret"]["secretName"]]
        assert path.name in secret["stringData"]
    for path in (args.state, args.logs):
        claim = mounts[str(path.parent)]["persistentVolumeClaim"]["claimName"]
        assert ("PersistentVolumeClaim", claim) in found


def test_placeholders_are_no_secrets_and_the_manager_refuses_them(tmp_path):
    secrets = [one for (kind, _), one in documents().items() if kind == "Secret"]
    values = {value for secret in secrets for value in secret["stringData"].values()}
    assert values == {"REPLACE-ME"}
    (tmp_path / "token").write_text(values.pop())
    with pytest.raises(InvalidSetting, match="at least 16 characters"):
        read_token(tmp_path / "token")


def test_selectors_ports_and_probes_fit_together():
    found = documents()
    deployment = found["Deployment", "evenstep-manager"]["spec"]
    service = found["Service", "evenstep-manager"]["spec"]
    labels = deployment["template"]["metadata"]["labels"]
    assert labels.items() >= deployment["selector"]["matchLabels"].items()
    assert labels.items() >= service["selector"].items()
    (container,) = pod()["containers"]
    named = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert {port["targetPort"]: port["port"] for port in service["ports"]} == named
    for probe, path in (("livenessProbe", "/livez"), ("readinessProbe", "/healthz")):
        wanted = {"path": path, "port": "http", "scheme": "HTTPS"}
        assert container[probe]["httpGet"] == wanted
    assert (deployment["replicas"], deployment["strategy"]["type"]) == (1, "Recreate")


def test_container_may_do_little():
    (container,) = pod()["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["securityContext"]["allowPrivilegeEscalation"] is False
    assert pod()["securityContext"]["runAsNonRoot"] is True
    assert container["resources"]["limits"]["memory"]
    user = pod()["securityContext"]["runAsUser"]
    assert f"USER {user}:{user}" in (DEPLOY / "Dockerfile").read_text()


def test_manifest_fits_the_schema_of_kubernetes():
    validate = pytest.importorskip(
        "kubernetes_validate", reason="kubernetes-validate is not installed (70 MB of schemas)"
    ).validate
    for document in documents().values():
        validate(document, "1.30", strict=True)


def test_image_is_built_of_files_that_exist():
    for line in (DEPLOY / "Dockerfile").read_text().splitlines():
        if line.startswith("COPY") and "--from" not in line:
            for name in line.split()[1:-1]:
                assert (DEPLOY.parent / name).exists()


def train_job():
    return yaml.safe_load((DEPLOY / "trainjob.yaml").read_text())


def test_train_job_fits_the_api_of_kubeflow_trainer():
    models = pytest.importorskip(
        "kubeflow_trainer_api.models", reason="kubeflow-trainer-api is not installed"
    )
    # Fields that the API does not have would be lost on the way.
    assert models.TrainerV1alpha1TrainJob.from_dict(train_job()).to_dict() == train_job()


def test_train_job_mounts_what_its_command_names():
    (patch,) = train_job()["spec"]["runtimePatches"]
    (job,) = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    spec = job["template"]["spec"]["template"]["spec"]
    (container,), (volume,) = spec["containers"], spec["volumes"]
    # The names of the runtime torch-distributed.
    assert (job["name"], container["name"]) == ("node", "node")
    (mount,) = container["volumeMounts"]
    assert mount["name"] == volume["name"]
    (checkpoint,) = [
        word for word in train_job()["spec"]["trainer"]["args"] if "--checkpoint" in word
    ]
    assert Path(checkpoint.partition("=")[2]).parent == Path(mount["mountPath"])


def test_skypilot_task_fits_the_schema_of_skypilot():
    schemas = pytest.importorskip("sky.utils.schemas", reason="skypilot is not installed")
    jsonschema = pytest.importorskip("jsonschema")
    task = yaml.safe_load((DEPLOY / "skypilot.yaml").read_text())
    jsonschema.validate(task, schemas.get_task_schema())
    jsonschema.validate(task["resources"], schemas.get_resources_schema())


def test_scripts_are_shell(tmp_path):
    task = yaml.safe_load((DEPLOY / "skypilot.yaml").read_text())
    for name in ("setup", "run"):
        (tmp_path / name).write_text(task[name])
    for script in (DEPLOY / "slurm.sbatch", tmp_path / "setup", tmp_path / "run"):
        subprocess.run(["bash", "-n", script], check=True, timeout=10)


def test_slurm_script_says_how_it_is_used():
    done = subprocess.run(
        ["bash", DEPLOY / "slurm.sbatch"], capture_output=True, text=True, timeout=10
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "usage: sbatch slurm.sbatch SCRIPT" in done.stderr

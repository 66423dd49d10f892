"""examples/: what starts a recorded training on a cluster records it, with stand-ins for the cluster."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from diag.api import local_path
from diag.collectors.launchers import KUBERNETES
from diag.collectors.layout import RunLayout
from diag.rundir.local import copies_folder
from tests.attach.trainings import steps_of
from tests.command import diag
from tests.kubernetes import SCHEMAS
from tests.patience import PATIENCE_S
from tests.ports import free_port
from tests.store.servers import s3

EXAMPLES = Path(__file__).parents[1] / "examples"
BATCH = sorted(EXAMPLES.glob("*.sbatch"))
PODS = sorted(EXAMPLES.glob("job*.yaml")) + sorted(EXAMPLES.glob("pytorchjob.yaml"))
GUIDE = EXAMPLES.parent / "docs" / "guides" / "long-runs.md"
DOCKERFILE = EXAMPLES / "recorder.Dockerfile"
BIN = Path(sys.executable).parent

SRUN = """#!/bin/bash
# Starts a task on each of two nodes, which are processes of this host.
echo "srun $*" >> "$CALLS"
while [[ $1 == --* ]]; do shift 2; done
for node in 0 1; do
    SLURM_PROCID=$node SLURM_LOCALID=0 SLURM_STEP_ID=$(wc -l < "$CALLS") SLURM_STEP_NUM_TASKS=2 "$@" &
    tasks+=($!)
done
for task in "${tasks[@]}"; do wait "$task" || failed=1; done
exit ${failed:-0}
"""
SCONTROL = "#!/bin/sh\necho localhost\necho localhost\n"


def job_id() -> int:
    """Of a job whose port, as the scripts choose it, is free."""
    for number in range(os.getpid() % 10_000, 20_000):
        with socket.socket() as one:
            if one.connect_ex(("localhost", 20_000 + number)):
                return number
    raise AssertionError("no free port")


def cluster(folder: Path) -> dict[str, str]:
    """The environment of a batch script."""
    programs = folder / "bin"
    programs.mkdir()
    for name, text in {"srun": SRUN, "scontrol": SCONTROL}.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    slurm = {"SLURM_NNODES": "2", "SLURM_NTASKS": "2", "SLURM_GPUS_ON_NODE": "1", "SLURM_JOB_NODELIST": "localhost"}
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "DIAG_"))},
        **slurm,
        "PATH": f"{programs}:{BIN}:{os.environ['PATH']}",
        "CALLS": str(folder / "calls"),
        "IMAGE": "image",
        "OMP_NUM_THREADS": "1",
    }


@pytest.mark.parametrize("script", BATCH, ids=lambda path: path.name)
def test_a_batch_script_is_one_of_bash(script: Path) -> None:
    checked = subprocess.run(["bash", "-n", script], capture_output=True, text=True, check=False)
    assert (checked.returncode, checked.stderr) == (0, "")
    head = [line for line in script.read_text().splitlines() if line.startswith("#SBATCH")]
    assert all(re.fullmatch(r"#SBATCH --[a-z-]+( \S+)?", line) for line in head)


@pytest.mark.parametrize(
    ("script", "train"),
    [
        pytest.param("slurm.sbatch", [], marks=pytest.mark.matrix),
        pytest.param("slurm-container.sbatch", ["python"], marks=pytest.mark.matrix),
    ],
)
def test_two_nodes_and_a_requeue_are_recorded(tmp_path: Path, script: str, train: list[str]) -> None:
    number = job_id()
    environment = cluster(tmp_path) | {"SLURM_JOB_ID": str(number)}
    for again in ({}, {"SLURM_RESTART_COUNT": "1"}):
        ended = subprocess.run(
            ["bash", EXAMPLES / script, *train, EXAMPLES / "ddp.py"],
            env=environment | again, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=PATIENCE_S,
        )  # fmt: skip
        assert ended.returncode == 0, ended.stdout + ended.stderr
        assert "NOT RECORDED" not in ended.stdout + ended.stderr
        assert ("The recorder would start." in ended.stdout) is ("container" in script)
    run = RunLayout(tmp_path / "runs" / str(number))
    for attempt in (run, run.restart(1)):
        assert [len(steps_of(attempt.root, rank)) for rank in (0, 1)] == [30, 30]
    assert len(run.restarts()) == 1


# -- Kubernetes --------------------------------------------------------------------------------------------------------


def objects_of(file: Path) -> list[dict[str, Any]]:
    """The job of a file last."""
    return sorted(yaml.safe_load_all(file.read_text()), key=lambda document: "Job" in document["kind"])


def pods_of(document: dict[str, Any]) -> list[dict[str, Any]]:
    """The pod templates of a job."""
    spec = document["spec"]
    if document["kind"] == "Job":
        return [spec["template"]]
    if document["kind"] == "PyTorchJob":
        assert set(spec["pytorchReplicaSpecs"]) == {"Master", "Worker"}
        return [replica["template"] for replica in spec["pytorchReplicaSpecs"].values()]
    assert all(job["name"] and job["replicas"] for job in spec["replicatedJobs"])
    return [job["template"]["spec"]["template"] for job in spec["replicatedJobs"]]


@pytest.mark.parametrize("file", PODS, ids=lambda path: path.name)
def test_a_job_is_one_of_its_schema(file: Path) -> None:
    from jsonschema import Draft202012Validator  # takes a second, which every worker would spend

    for document in objects_of(file):
        check = Draft202012Validator(SCHEMAS[document["kind"]])
        assert [f"{error.json_path}: {error.message}" for error in check.iter_errors(document)] == []
    for path, wrong in (("replicas", "2"), ("volumeMount", []), ("command", [8]), ("image", None)):
        damaged = objects_of(file)[-1]
        pod = pods_of(damaged)[0]
        place = damaged["spec"] if path == "replicas" else pod["spec"]["containers"][0]
        place[path] = wrong
        assert not check.is_valid(damaged), path


@pytest.mark.parametrize("file", PODS, ids=lambda path: path.name)
def test_a_job_has_what_diag_and_its_operator_look_for(file: Path) -> None:
    document = objects_of(file)[-1]
    assert document["metadata"]["name"]
    for pod in pods_of(document):
        (container,) = pod["spec"]["containers"]
        assert container["name"] == "pytorch"  # which the operator of PyTorchJobs looks for
        assert {"image", "command", "env"} <= set(container)
        names = {volume["name"] for volume in pod["spec"].get("volumes", [])}
        assert {mount["name"] for mount in container.get("volumeMounts", [])} == names
        for entry in container["env"]:
            label = entry.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
            assert label is None or label.removeprefix("metadata.labels['").removesuffix("']") in KUBERNETES.values()
        used = {name for word in container["command"] for name in re.findall(r"\$\((\w+)\)", word)}
        assert used <= {entry["name"] for entry in container["env"]}


def test_the_env_of_a_pod_is_what_diag_attach_prints() -> None:
    (pod, _) = pods_of(yaml.safe_load((EXAMPLES / "pytorchjob.yaml").read_text()))
    (printed,) = re.findall(r"diag (attach --format k8s .*)", (EXAMPLES / "pytorchjob.yaml").read_text())
    said = yaml.safe_load(diag(*printed.split()).stdout)["env"]
    assert [entry for entry in pod["spec"]["containers"][0]["env"] if entry not in said] == []


@pytest.mark.matrix
def test_pods_that_know_nothing_of_each_other_record_together(tmp_path: Path) -> None:
    """The env of the PyTorchJob, and the one folder that the target `recorder` of the Dockerfile copies."""
    (copied,) = re.findall(r"AS recorder\nCOPY (\S+) (\S+)", DOCKERFILE.read_text())
    shutil.copytree(EXAMPLES.parent / copied[0], image := tmp_path / copied[1].strip("/"))
    (pod, _) = pods_of(yaml.safe_load((EXAMPLES / "pytorchjob.yaml").read_text()))
    env = {entry["name"]: entry["value"] for entry in pod["spec"]["containers"][0]["env"] if "value" in entry}
    run = RunLayout(tmp_path / "shared")
    env |= {
        "DIAG_RUN_DIR": str(run.root),
        "PYTHONPATH": env["PYTHONPATH"].replace(copied[1], str(image)),
        "DIAG_PYTORCHJOB": "train",
    }
    for _ in range(2):
        operator = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2", "LOCAL_RANK": "0"}
        pods = [
            subprocess.Popen(
                [sys.executable, EXAMPLES / "ddp.py"], env=os.environ | env | operator | {"RANK": str(rank)}
            )
            for rank in range(2)
        ]
        assert [one.wait(PATIENCE_S) for one in pods] == [0, 0]
    for attempt in (run, run.restart(1)):
        assert [len(steps_of(attempt.root, rank)) for rank in (0, 1)] == [30, 30]


def expanded(text: str, environment: dict[str, str]) -> str:
    """As Kubernetes does: what it does not know stays as it is."""
    return re.sub(r"\$\((\w+)\)", lambda match: environment.get(match[1], match[0]), text)


LABELS = {
    "job.yaml": [{"batch.kubernetes.io/controller-uid": "5e-7"}] * 2,
    "jobset.yaml": [
        {"jobset.sigs.k8s.io/jobset-name": "train", "jobset.sigs.k8s.io/restart-attempt": str(count)}
        for count in (0, 1)
    ],
}


@pytest.mark.matrix
@pytest.mark.parametrize("file", LABELS)
def test_pods_without_a_shared_volume_record_into_an_object_store(
    file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two pods and their restart, as processes with the variables of the manifest alone, and a folder each."""
    (pod,) = pods_of(objects_of(EXAMPLES / file)[-1])
    (container,) = pod["spec"]["containers"]
    with s3(tmp_path) as server:
        for name, value in {**server.variables, "DIAG_CACHE": str(tmp_path / "cache")}.items():
            monkeypatch.setenv(name, value)
        copies_folder.cache_clear()
        for attempt, labels in enumerate(LABELS[file]):
            port, pods = free_port(), []
            for number in range(2):
                (home := tmp_path / f"pod-{attempt}-{number}").mkdir()
                variables = dict(server.variables)  # the secret
                assert container["envFrom"] == [{"secretRef": {"name": "bucket-credentials"}}]
                for entry in container["env"]:
                    label = entry["valueFrom"]["fieldRef"]["fieldPath"].removeprefix("metadata.labels['")[:-2]
                    variables[entry["name"]] = labels[label]
                command = [expanded(word, variables) for word in container["command"]]
                assert "$" not in "".join(command)
                here = {"/opt/diag/bin/diag": str(BIN / "diag"), "--nproc-per-node=8": "--nproc-per-node=1"}
                here |= {"train.py": str(EXAMPLES / "ddp.py")}
                command = [here.get(word, word) for word in command]
                command = [re.sub(r"(endpoint=)[\w.-]+:29500", rf"\1localhost:{port}", word) for word in command]
                variables |= {
                    "PATH": f"{BIN}:/usr/bin:/bin",
                    "HOME": str(home),
                    "TMPDIR": str(home),
                    "OMP_NUM_THREADS": "1",
                }
                pods.append(subprocess.Popen(command, env=variables, cwd=home))
            assert [one.wait(PATIENCE_S) for one in pods] == [0, 0]
        (address,) = {word for word in command if word.startswith("s3://")}
        run = RunLayout(local_path(address))
        for one in (run, run.restart(1)):
            assert [len(steps_of(one.root, rank)) for rank in (0, 1)] == [30, 30]
        assert len(run.restarts()) == 1
        assert local_path(f"{address}/restart-1") == run.restart(1).root
    copies_folder.cache_clear()


def test_the_container_of_the_guide_is_that_of_the_example() -> None:
    (shown,) = re.findall(r"```yaml\n(command:.*?)```", GUIDE.read_text(), re.S)
    (container,) = pods_of(objects_of(EXAMPLES / "job.yaml")[-1])[0]["spec"]["containers"]
    assert {name: container[name] for name in ("command", "env", "envFrom")} == yaml.safe_load(shown)


def test_the_dockerfile_copies_what_there_is() -> None:
    lines = re.findall(r"^COPY (.+) (\S+)$", DOCKERFILE.read_text(), re.M)
    assert lines
    assert all((EXAMPLES.parent / source).exists() for sources, _ in lines for source in sources.split())

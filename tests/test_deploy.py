"""The files for Kubernetes and for clouds agree with the code: commands, options, types, resources and versions."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from heterps.catalog.clusters import cluster_of
from heterps.cli.main import app
from heterps.errors import InvalidInput
from heterps.job import Job
from heterps.plan import Cluster, Plan
from heterps.runtime.cluster.layout import Resources, lay_out, missing

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples"
JOB_KEYS = {
    "entrypoint", "backoffLimit", "shutdownAfterJobFinishes", "ttlSecondsAfterFinished", "rayClusterSpec",
}  # fmt: skip
CLUSTER_KEYS = {"rayVersion", "authOptions", "enableInTreeAutoscaling", "headGroupSpec", "workerGroupSpecs"}
HEAD_KEYS = {"rayStartParams", "template"}
GROUP_KEYS = {"groupName", "replicas", "minReplicas", "maxReplicas", "rayStartParams", "template"}
"""Of KubeRay's ray.io/v1: an operator refuses or drops what it does not know."""


@pytest.fixture(scope="module")
def manifests() -> dict[str, Any]:
    found = list(yaml.safe_load_all((EXAMPLES / "kuberay.yaml").read_text()))
    return {document["kind"]: document for document in found}


@pytest.fixture(scope="module")
def ray_cluster(manifests: dict[str, Any]) -> dict[str, Any]:
    return dict(manifests["RayJob"]["spec"]["rayClusterSpec"])


@pytest.fixture(scope="module")
def task() -> dict[str, Any]:
    return dict(yaml.safe_load((EXAMPLES / "sky.yaml").read_text()))


@pytest.fixture(scope="module")
def kube_job(manifests: dict[str, Any]) -> Job:
    return Job.from_dict(yaml.safe_load(manifests["ConfigMap"]["data"]["ctr.yaml"]), source="kuberay.yaml")


def options_of(words: list[str]) -> dict[str, list[str]]:
    """Options of a heterps command with their values; those that the command does not have are a failure."""
    assert words[0] == "heterps"
    commands: Any = typer.main.get_command(app)
    known = {option for each in commands.commands[words[1]].params for option in each.opts}
    given: dict[str, list[str]] = {}
    for word, value in zip(words[2:], [*words[3:], ""], strict=True):
        if word.startswith("--"):
            assert word in known, f"{word} is no option of heterps {words[1]}"
            given.setdefault(word, []).append(value)
    return given


def container_of(group: dict[str, Any]) -> dict[str, Any]:
    (container,) = group["template"]["spec"]["containers"]
    return dict(container)


def resources_of(group: dict[str, Any]) -> Resources:
    """What Ray takes a pod for: its limits, and what rayStartParams say."""
    limits, params = container_of(group)["resources"]["limits"], group["rayStartParams"]
    found = {"CPU": float(params.get("num-cpus", limits["cpu"])), "GPU": float(limits.get("nvidia.com/gpu", 0))}
    named = json.loads(shlex.split(params["resources"])[0]) if "resources" in params else {}  # as the shell hands it on
    return {**found, **{name: float(amount) for name, amount in named.items()}}


def whole(cluster: Cluster) -> list[Plan]:
    """For each type, a plan on all its units, and the parameter server on a core, if the type is not of cores."""
    plans = []
    for name, kind in cluster.types.items():
        assert kind.limit is not None
        on_cores = kind.device == "cpu"
        plans.append(Plan.from_dict({
            "format": "heterps.plan/1", "model": "any", "method": "fixed", "placement": [name],
            "types": {each: {"device": one.device, "price_per_hour": 1.0} for each, one in cluster.types.items()},
            "stages": [{"first": 0, "last": 0, "type": name, "units": kind.limit - on_cores}],
            "parameter_server": {"type": "cpu", "units": 1},
            "predicted": {"throughput": 1.0, "usd_per_hour": 1.0, "usd_per_million_samples": 1.0},
            "search": {"seconds": 0.0, "evaluations": 0, "optimal": False},
            "inputs": {"profile_sha256": "", "cluster_sha256": "", "min_throughput": 0.0},
        }))  # fmt: skip
    return plans


def assert_holds(nodes: list[Resources], cluster: Cluster) -> None:
    """Machines hold all that a plan may ask for, and GPU types only land where their name is offered."""
    offered = {name: sum(node.get(name, 0.0) for node in nodes) for node in nodes for name in node}
    for plan in whole(cluster):
        largest = max(node["CPU"] for node in nodes)
        demands = lay_out(plan, tables=1, node_cpus=largest).demands(offered)
        assert missing(demands, nodes) is None
        (stage,) = plan.stages
        if plan.types[stage.type].device == "cuda":
            assert demands[0] == {"GPU": 1.0, stage.type: 1.0}


class TestKubernetes:
    def test_it_is_what_the_operator_knows(self, manifests: dict[str, Any], ray_cluster: dict[str, Any]) -> None:
        assert list(manifests) == ["ConfigMap", "Secret", "PersistentVolumeClaim", "RayJob"]
        assert manifests["RayJob"]["apiVersion"] == "ray.io/v1"
        assert manifests["RayJob"]["spec"].keys() <= JOB_KEYS
        assert ray_cluster.keys() <= CLUSTER_KEYS
        assert ray_cluster["headGroupSpec"].keys() == HEAD_KEYS
        for group in ray_cluster["workerGroupSpecs"]:
            assert group.keys() == GROUP_KEYS
            assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
        for group in [ray_cluster["headGroupSpec"], *ray_cluster["workerGroupSpecs"]]:
            assert all(isinstance(value, str) for value in group["rayStartParams"].values())

    def test_what_is_mounted_and_named_is_there(self, manifests: dict[str, Any], ray_cluster: dict[str, Any]) -> None:
        names = {kind: document["metadata"]["name"] for kind, document in manifests.items()}
        for group in [ray_cluster["headGroupSpec"], *ray_cluster["workerGroupSpecs"]]:
            container, spec = container_of(group), group["template"]["spec"]
            assert container["envFrom"] == [{"secretRef": {"name": names["Secret"]}}]
            assert {mount["name"] for mount in container["volumeMounts"]} == {each["name"] for each in spec["volumes"]}
            for volume in spec["volumes"]:
                if "configMap" in volume:
                    assert volume["configMap"]["name"] == names["ConfigMap"]
                else:
                    assert volume["persistentVolumeClaim"]["claimName"] == names["PersistentVolumeClaim"]

    def test_the_command_finds_its_job(self, manifests: dict[str, Any], ray_cluster: dict[str, Any]) -> None:
        words = shlex.split(manifests["RayJob"]["spec"]["entrypoint"])
        given = options_of(words)
        mounts = {
            mount["name"]: mount["mountPath"] for mount in container_of(ray_cluster["headGroupSpec"])["volumeMounts"]
        }
        assert words[2] == f"{mounts['job']}/{next(iter(manifests['ConfigMap']['data']))}"
        assert given["--runs"] == [mounts["runs"]]

    def test_the_job_is_sound(self, kube_job: Job) -> None:
        assert kube_job.engine.name == "ray"
        assert kube_job.engine.wait_minutes > 0  # pods are made on demand
        assert kube_job.checkpoint.path is not None
        assert kube_job.checkpoint.path.startswith("s3://")
        data, _ = kube_job.sources()
        kube_job.build(data)

    def test_the_groups_hold_what_a_plan_may_ask_for(self, kube_job: Job, ray_cluster: dict[str, Any]) -> None:
        groups = ray_cluster["workerGroupSpecs"]
        assert {group["groupName"] for group in groups} == set(cluster_of(kube_job.cluster).types)
        nodes = [resources_of(group) for group in groups for _ in range(group["maxReplicas"])]
        assert resources_of(ray_cluster["headGroupSpec"])["CPU"] == 0
        assert_holds(nodes, cluster_of(kube_job.cluster))


class TestCloud:
    def test_scripts_are_sound(self, task: dict[str, Any]) -> None:
        for script in (task["setup"], task["run"]):
            done = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True)
            assert (done.returncode, done.stderr) == (0, "")
        used = set(re.findall(r"\$([A-Z_]+)", task["run"]))
        assert {name for name in used if not name.startswith("SKYPILOT_")} <= {*task["envs"], *task["secrets"]}

    def test_ray_knows_the_options(self, task: dict[str, Any]) -> None:
        scripts = pytest.importorskip("ray.scripts.scripts")
        known = {option for each in scripts.start.params for option in each.opts}
        given = set(re.findall(r"--[a-z-]+", " ".join(re.findall(r"ray start (.*)", task["run"]))))
        assert given
        assert given <= known

    def test_the_command_is_sound_and_the_machines_hold_it(self, task: dict[str, Any]) -> None:
        (command,) = re.findall(r"^heterps (?:\\\n|.)*", task["run"], re.MULTILINE)
        words = shlex.split(command.replace("\\\n", " "))
        given = options_of(words)
        changed = [one.replace("$CHECKPOINTS", task["envs"]["CHECKPOINTS"]) for one in given["--set"]]
        job = Job.load(ROOT / words[2]).with_values([*changed, "engine.name=ray"], source="sky.yaml")
        assert job.checkpoint.path == task["envs"]["CHECKPOINTS"]
        ((kind, gpus),) = task["resources"]["accelerators"].items()
        cores = float(task["resources"]["cpus"].rstrip("+"))
        (offered,) = re.findall(r"own='\{\"(\w+)\": '", task["run"])
        assert offered == kind.lower()
        nodes: list[Resources] = [{"CPU": cores, "GPU": float(gpus), offered: float(gpus)}] * task["num_nodes"]
        assert_holds(nodes, cluster_of(job.cluster))


def test_all_have_the_same_ray(ray_cluster: dict[str, Any], task: dict[str, Any]) -> None:
    docker = (EXAMPLES / "Dockerfile").read_text()
    versions = re.findall(r"^ARG RAY=(\S+)$", docker, re.MULTILINE) + re.findall(
        r"ray\[default\]==([\d.]+)", task["setup"]
    )
    pinned = re.findall(r"^ray==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert {*versions, ray_cluster["rayVersion"]} == set(pinned)
    images = {
        container_of(group)["image"] for group in [ray_cluster["headGroupSpec"], *ray_cluster["workerGroupSpecs"]]
    }
    assert len(images) == 1


def test_a_key_that_jobs_do_not_have_would_be_found(kube_job: Job) -> None:
    with pytest.raises(InvalidInput):
        Job.from_dict({**kube_job.to_dict(), "engine": {"name": "ray", "elastisch": True}})

"""The systemd unit, the Slurm scripts and the Kubernetes files, as far as this machine can tell.

There is no Slurm and no cluster here: scripts are run with stand-ins for what they start, manifests
are compared with the keys that the Kubernetes API has for them.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

pytestmark = pytest.mark.slow

DEPLOY = Path(__file__).parents[2] / "deploy"
UNIT = DEPLOY / "systemd" / "raydiag-exporter.service"
SCRIPTS = sorted(DEPLOY.rglob("*.sh"))


# ---- systemd


def unit_with_a_program_of_this_machine(directory: Path) -> Path:
    text = UNIT.read_text()
    assert "/opt/raydiag/bin/raydiag" in text
    path = directory / UNIT.name
    path.write_text(text.replace("/opt/raydiag/bin/raydiag", "/bin/true"))
    return path


def systemd_analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("systemd-analyze is not installed: the unit is not verified")
    command = [program, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_systemd_understands_every_line_of_the_unit(tmp_path: Path) -> None:
    done = systemd_analyze("verify", str(unit_with_a_program_of_this_machine(tmp_path)))
    assert (done.returncode, done.stderr) == (0, "")


def test_the_unit_is_confined(tmp_path: Path) -> None:
    """As systemd rates it: 10 is a service with all rights, its own usual ones have over 9."""
    path = unit_with_a_program_of_this_machine(tmp_path)
    done = systemd_analyze("security", "--offline=true", "--threshold=30", str(path))
    if "unrecognized option" in done.stderr:
        pytest.skip("this systemd-analyze cannot rate a unit that is not installed")
    assert done.returncode == 0, done.stdout[-400:]


def test_the_unit_starts_our_command_and_lets_it_see_what_it_reads() -> None:
    lines = UNIT.read_text().splitlines()
    (start,) = (line for line in lines if line.startswith("ExecStart="))
    assert " exporter run --state-dir /run/raydiag " in start
    assert {"RuntimeDirectory=raydiag", "RuntimeDirectoryPreserve=yes"} <= set(lines)
    assert "Restart=always" in lines
    assert "DeviceAllow=/dev/kmsg r" in lines
    hidden = ("ProtectKernelLogs=yes", "PrivateDevices=yes", "ProcSubset=pid", "PrivateNetwork=yes")
    assert not set(hidden) & set(lines)


# ---- scripts


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_the_shell_understands_it(path: Path) -> None:
    shell = "sh" if path.read_text().startswith("#!/bin/sh") else "bash"
    done = subprocess.run([shell, "-n", str(path)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_shellcheck_finds_nothing(path: Path) -> None:
    program = shutil.which("shellcheck")
    if program is None:
        pytest.skip("shellcheck is not installed")
    done = subprocess.run([program, str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def stand_in(directory: Path, name: str, body: str) -> None:
    directory.mkdir(exist_ok=True)
    path = directory / name
    path.write_text(f"#!/bin/bash\n{body}\n")
    path.chmod(0o755)


def path_with(directory: Path) -> dict[str, str]:
    return {**os.environ, "PATH": f"{directory}:/usr/bin:/bin"}


@pytest.mark.parametrize("script", ["prolog.sh", "epilog.sh"])
@pytest.mark.parametrize("systemctl", ["exit 1", "sleep 3600", "kill -9 $$", "exit 0"])
def test_no_node_is_drained_for_the_exporter(tmp_path: Path, script: str, systemctl: str) -> None:
    """Slurm drains a node whose prolog or epilog fails, or does not end."""
    stand_in(tmp_path / "bin", "systemctl", f'echo "$@" >> {tmp_path}/asked; {systemctl}')
    environment = {**path_with(tmp_path / "bin"), "RAYDIAG_STOP_AFTER_JOB": "1"}
    done = subprocess.run(
        [str(DEPLOY / "slurm" / script)], env=environment, capture_output=True, timeout=60
    )
    assert done.returncode == 0
    word = {"prolog.sh": "start", "epilog.sh": "stop"}[script]
    asked = (tmp_path / "asked").read_text()
    assert asked == f"--no-block {word} raydiag-exporter.service\n"


def test_the_epilog_leaves_the_exporter_running_unless_told(tmp_path: Path) -> None:
    stand_in(tmp_path / "bin", "systemctl", f"touch {tmp_path}/asked")
    environment = path_with(tmp_path / "bin")
    environment.pop("RAYDIAG_STOP_AFTER_JOB", None)
    subprocess.run([str(DEPLOY / "slurm" / "epilog.sh")], env=environment, check=True, timeout=60)
    assert not (tmp_path / "asked").exists()


_BATCH = """
set -euo pipefail
source {script}
bash -c 'trap "echo signal >> {out}/training; exit" TERM INT HUP; echo up > {out}/training
  while :; do sleep 0.05; done' &
training=$!
start_exporters
for _ in $(seq 400); do [ -s {out}/exporter ] && [ -s {out}/training ] && break; sleep 0.05; done
exporter=$raydiag_exporters_pid
stop_exporters
wait "$exporter" || echo exporter-ended
sleep 0.3
kill -0 $training && echo training-lives
stop_exporters
kill -9 $training
"""


WITHOUT_SYSLOG = ["setpriv", "--inh-caps=-syslog", "--bounding-set=-syslog"]


def may_read_the_kernel_log(*prefix: str) -> bool:
    program = [*prefix, sys.executable, "-c", "open('/dev/kmsg')"]
    return subprocess.run(program, stderr=subprocess.DEVNULL, check=False).returncode == 0


@pytest.mark.parametrize("prefix", [[], WITHOUT_SYSLOG], ids=["as we are", "without rights"])
def test_a_jobs_exporters_start_and_end_by_themselves(prefix: list[str], tmp_path: Path) -> None:
    """`srun` is a stand-in: it runs the command after its options, once, here."""
    if prefix and (os.getuid() or not shutil.which(prefix[0])):
        pytest.skip("only root can give a right away, and by setpriv")
    srun = 'while [[ $1 == --* ]]; do echo "$1" >> OUT/options; shift; done; exec "$@"'
    stand_in(tmp_path / "bin", "srun", srun.replace("OUT", str(tmp_path)))
    said = 'echo "$NODE_RANK $RAYDIAG_JOB_START $*"'
    stand_in(tmp_path / "bin", "raydiag", f"{said} > {tmp_path}/exporter; exec sleep 3600")
    script = _BATCH.format(script=DEPLOY / "slurm" / "job_exporters.sh", out=tmp_path)
    environment = path_with(tmp_path / "bin") | {
        "RAYDIAG_LOGS": str(tmp_path / "logs"),
        "RAYDIAG_TENSORBOARD_DIR": "/outputs/a b",
        "RAYDIAG_RUN_DIR": str(tmp_path / "run"),
        "SLURM_NODEID": "3",
    }
    before = time.time()
    done = subprocess.run(
        [*prefix, "bash", "-c", script],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout == "exporter-ended\ntraining-lives\n", done.stderr
    assert (tmp_path / "training").read_text() == "up\n"
    rank, started, *arguments = (tmp_path / "exporter").read_text().split()
    assert rank == "3"
    assert int(before) <= int(started) <= time.time()
    assert " ".join(arguments).endswith("--tensorboard-dir /outputs/a b")
    assert arguments[:5] == ["exporter", "run", "--supervise", "--listen", "127.0.0.1:9400"]
    assert f"--pid-file {tmp_path}/run/exporter.pid" in " ".join(arguments)
    assert stat.S_IMODE((tmp_path / "run").stat().st_mode) == 0o700
    is_skipped = arguments[5:7] == ["--skip", "kernel_log"]
    assert is_skipped is not may_read_the_kernel_log(*prefix)
    options = (tmp_path / "options").read_text().split()
    assert {"--overlap", "--kill-on-bad-exit=0", "--gpus=0"} <= set(options)


@pytest.mark.parametrize("logs", ["", "/proc/nowhere"])
def test_a_batch_script_goes_on_without_exporters(logs: str) -> None:
    script = f"set -euo pipefail; source {DEPLOY}/slurm/job_exporters.sh; "
    script += "start_exporters; stop_exporters; echo training"
    environment = {**os.environ, "RAYDIAG_LOGS": logs}
    done = subprocess.run(
        ["bash", "-c", script], env=environment, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, "training\n")
    assert "RAYDIAG_LOGS" in done.stderr


# ---- Kubernetes


def keys(properties: dict[str, Any], *required: str) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


TEXT, NUMBER, TRUTH = {"type": "string"}, {"type": "integer", "minimum": 1}, {"type": "boolean"}
TEXTS = {"type": "array", "items": TEXT}
LABELS = {"type": "object", "additionalProperties": TEXT}
FIELD = keys({"fieldRef": keys({"fieldPath": TEXT}, "fieldPath")}, "fieldRef")
# Source: Kubernetes API reference v1.30, Container v1 core, PodSpec v1 core, DaemonSet v1 apps; of
# each what is of use here: a key that is not listed is a slip of the pen, or wants a second look.
CONTAINER = keys(
    {
        "name": {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"},
        "image": TEXT,
        "command": TEXTS,
        "args": TEXTS,
        "env": {"type": "array", "items": keys({"name": TEXT, "valueFrom": FIELD}, "name")},
        "ports": {
            "type": "array",
            "items": keys(
                {
                    "name": {"type": "string", "maxLength": 15},
                    "containerPort": NUMBER,
                    "hostPort": NUMBER,
                    "protocol": {"enum": ["TCP", "UDP"]},
                },
                "containerPort",
            ),
        },
        "livenessProbe": keys(
            {
                "httpGet": keys({"path": TEXT, "port": NUMBER}, "port"),
                "initialDelaySeconds": NUMBER,
                "periodSeconds": NUMBER,
                "timeoutSeconds": NUMBER,
                "failureThreshold": NUMBER,
            }
        ),
        "resources": keys({"requests": LABELS, "limits": LABELS}, "requests", "limits"),
        "securityContext": keys(
            {
                "privileged": {"const": False},
                "allowPrivilegeEscalation": {"const": False},
                "readOnlyRootFilesystem": TRUTH,
                "capabilities": keys({"drop": {"const": ["ALL"]}}, "drop"),
            },
            "privileged",
            "capabilities",
        ),
        "volumeMounts": {
            "type": "array",
            "items": keys(
                {"name": TEXT, "mountPath": TEXT, "readOnly": TRUTH}, "name", "mountPath"
            ),
        },
    },
    "name",
    "image",
    "command",
    "resources",
    "securityContext",
)
META = keys({"name": TEXT, "namespace": TEXT, "labels": LABELS, "annotations": LABELS})
POD = keys(
    {
        "hostNetwork": TRUTH,
        "dnsPolicy": {"enum": ["ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"]},
        "automountServiceAccountToken": TRUTH,
        "terminationGracePeriodSeconds": NUMBER,
        "tolerations": {"type": "array", "items": keys({"operator": {"enum": ["Exists"]}})},
        "containers": {"type": "array", "minItems": 1, "items": CONTAINER},
        "volumes": {
            "type": "array",
            "items": keys(
                {"name": TEXT, "emptyDir": keys({"medium": TEXT, "sizeLimit": TEXT})}, "name"
            ),
        },
    },
    "containers",
)
DAEMON_SET = keys(
    {
        "apiVersion": {"const": "apps/v1"},
        "kind": {"const": "DaemonSet"},
        "metadata": META,
        "spec": keys(
            {
                "selector": keys({"matchLabels": LABELS}, "matchLabels"),
                "updateStrategy": keys(
                    {
                        "type": {"enum": ["RollingUpdate", "OnDelete"]},
                        "rollingUpdate": keys({"maxUnavailable": NUMBER}),
                    }
                ),
                "template": keys({"metadata": META, "spec": POD}, "metadata", "spec"),
            },
            "selector",
            "template",
        ),
    },
    "apiVersion",
    "kind",
    "metadata",
    "spec",
)
PATCH = {
    "type": "array",
    "items": keys(
        {"op": {"const": "add"}, "path": {"type": "string", "pattern": "^/"}, "value": CONTAINER},
        "op",
        "path",
        "value",
    ),
}


def manifest(name: str) -> Any:
    return yaml.safe_load((DEPLOY / "kubernetes" / name).read_text(encoding="utf-8"))


def containers() -> Iterator[tuple[str, dict[str, Any], set[str]]]:
    """File, container, and the volumes that it may mount."""
    spec = manifest("daemonset.yaml")["spec"]["template"]["spec"]
    yield "daemonset.yaml", spec["containers"][0], {one["name"] for one in spec["volumes"]}
    for step in manifest("kuberay-sidecar.yaml"):
        yield "kuberay-sidecar.yaml", step["value"], {"outputs"}  # the job's, named in the header


@pytest.mark.parametrize(
    ("name", "schema"), [("daemonset.yaml", DAEMON_SET), ("kuberay-sidecar.yaml", PATCH)]
)
def test_manifests_have_the_keys_of_the_api_and_no_others(
    name: str, schema: dict[str, Any]
) -> None:
    jsonschema.validate(manifest(name), schema)
    text = (DEPLOY / "kubernetes" / name).read_text()
    assert "it has not been tried on a cluster" in " ".join(text.replace("#", " ").split())


def test_the_daemon_set_selects_its_own_pods() -> None:
    spec = manifest("daemonset.yaml")["spec"]
    labels = spec["template"]["metadata"]["labels"]
    assert spec["selector"]["matchLabels"].items() <= labels.items()


@pytest.mark.parametrize(("name", "container", "volumes"), list(containers()))
def test_containers_use_what_is_defined(
    name: str, container: dict[str, Any], volumes: set[str]
) -> None:
    assert {one["name"] for one in container["volumeMounts"]} <= volumes, name
    words = " ".join(container["args"])
    defined = {one["name"] for one in container["env"]}
    assert {part.partition(")")[0] for part in words.split("$(")[1:]} == defined
    port = container["ports"][0]["containerPort"]
    assert f":{port} " in f"{words} "
    assert not [one for one in container["resources"]["limits"] if "gpu" in one]


def test_kubernetes_state_is_in_memory_and_a_collector_that_hangs_is_noticed() -> None:
    spec = manifest("daemonset.yaml")["spec"]["template"]["spec"]
    assert spec["containers"][0]["livenessProbe"]["httpGet"]["path"] == "/healthz"
    assert spec["volumes"][0]["emptyDir"]["medium"] == "Memory"
    for _, container, _ in containers():
        assert "--skip kernel_log" in " ".join(container["args"])


def patch_of_a_cluster(groups: int, directory: Path) -> Any:
    """What the script has `kubectl` do, by a stand-in, for so many worker groups."""
    names = " ".join(f"group-{number}" for number in range(groups))
    body = f"""
case $1 in get) echo '{names}' ;; patch) printf '%s\\n' "$@" > {directory}/asked ;; esac"""
    stand_in(directory / "bin", "kubectl", body)
    script = str(DEPLOY / "kubernetes" / "kuberay-sidecar.sh")
    environment = path_with(directory / "bin")
    subprocess.run([script, "train", "-n", "ml"], env=environment, check=True, timeout=60)
    *arguments, patch = (directory / "asked").read_text().split("\n", 6)
    assert arguments == ["patch", "raycluster", "train", "-n", "ml", "--type=json"]
    return yaml.safe_load(patch.removeprefix("--patch\n"))


@pytest.mark.parametrize("groups", [0, 1, 3])
def test_the_sidecar_comes_behind_rays_container_in_each_group(groups: int, tmp_path: Path) -> None:
    """JSON patch: `-` is the place behind the last element."""
    steps = patch_of_a_cluster(groups, tmp_path)
    jsonschema.validate(steps, PATCH)
    workers = [{"template": {"spec": {"containers": [{"name": "ray"}]}}} for _ in range(groups)]
    ray = {"containers": [{"name": "ray", "image": "ray"}]}
    cluster: dict[str, Any] = {
        "spec": {"headGroupSpec": {"template": {"spec": ray}}, "workerGroupSpecs": workers}
    }
    for step in steps:
        *parents, last = step["path"].strip("/").split("/")
        target: Any = cluster
        for key in parents:
            target = target[int(key) if isinstance(target, list) else key]
        assert last == "-"
        target.append(step["value"])
    all_groups = [cluster["spec"]["headGroupSpec"], *cluster["spec"]["workerGroupSpecs"]]
    names = [
        [one["name"] for one in group["template"]["spec"]["containers"]] for group in all_groups
    ]
    assert names == [["ray", "raydiag-exporter"]] * (1 + groups)


# ---- how it gets there

MAKEFILE = DEPLOY.parent / "Makefile"


def test_documents_build_what_they_install() -> None:
    """No index has raydiag: who installs it has built a file, by a target that exists."""
    texts = [path.read_text() for path in DEPLOY.rglob("*") if path.is_file()]
    assert not [text for text in texts if re.search(r"pip install raydiag(?!-\*\.whl)", text)]
    targets = {line.partition(":")[0] for line in MAKEFILE.read_text().splitlines()}
    asked = set(re.findall(r"`make ([a-z]+)", "".join(texts)))
    assert {"wheel", "pyz", "image"} <= asked <= targets


def test_the_image_holds_the_file_that_make_builds_under_the_name_that_manifests_run() -> None:
    done = subprocess.run(
        ["make", "-n", "image"], cwd=DEPLOY.parent, capture_output=True, text=True, check=True
    )
    assert " tools/pyz.py dist/raydiag.pyz" in done.stdout
    assert "build -f deploy/image/Containerfile -t raydiag:0.1.0 ." in done.stdout
    lines = (DEPLOY / "image" / "Containerfile").read_text().splitlines()
    ((_, source, place),) = (line.split() for line in lines if line.startswith("COPY"))
    assert source == "dist/raydiag.pyz"
    for _, container, _ in containers():
        assert container["image"].endswith("/raydiag:0.1.0")
        assert container["command"][0] == Path(place).name


# ---- the exporter's own word for each option


def test_options_are_those_of_the_command(tmp_path: Path) -> None:
    """Every option that these files pass is one that `raydiag exporter run` has."""
    done = subprocess.run(
        [sys.executable, "-m", "raydiag", "exporter", "run", "--help"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    texts = [UNIT.read_text(), *(" ".join(one["args"]) for _, one, _ in containers())]
    lines = [line for text in texts for line in text.splitlines() if not line.startswith("#")]
    script = (DEPLOY / "slurm" / "job_exporters.sh").read_text()
    lines.append(script[script.index("options=(") :].partition("\n    '")[0])
    passed = {word.strip('"()[];') for line in lines for word in line.split()}
    options = {word for word in passed if word.startswith("--")}
    assert "--state-dir" in options
    assert {one for one in options if one not in done.stdout} == set()

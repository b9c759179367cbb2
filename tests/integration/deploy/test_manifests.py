"""The Dockerfile, the compose file and the Kubernetes base against their own rules."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from dataclasses import fields
from pathlib import Path
from typing import Any

import jsonschema_rs
import kubernetes_validate
import pytest
import yaml

from harness.deploy import compose_file
from service.base.settings import Settings, load_settings
from service.base.webhook_signing import keyring

ROOT = Path(__file__).parents[3]
BASE = ROOT / "deploy" / "kubernetes" / "base"


def test_the_dockerfile_has_no_findings() -> None:
    program = Path(sys.executable).parent / "hadolint"
    linted = subprocess.run([program, ROOT / "Dockerfile"], capture_output=True, text=True)
    assert linted.returncode == 0, linted.stdout


def test_every_target_is_non_root_pinned_and_hashed() -> None:
    text = (ROOT / "Dockerfile").read_text()
    for image in re.findall(r"^ARG \w+_IMAGE=(\S+)$", text, re.MULTILINE):
        assert re.search(r":\d+\.\d+\.\d+", image), f"{image} has no full version"
    for name in ("service", "worker", "agent"):
        assert compose_file.images()[name].user == 10001
    for name in ("service", "worker", "agent", "agent-without-torch", "docs"):
        pinned = (ROOT / "deploy" / "requirements" / f"{name}.txt").read_text()
        lines = [line for line in pinned.splitlines() if re.match(r"[A-Za-z]", line)]
        assert lines and all("==" in line for line in lines)
        assert pinned.count("--hash=sha256:") >= len(lines)
        assert "://" not in pinned
    assert "--require-hashes" in text


def test_what_the_dockerfile_copies_exists_and_is_not_ignored() -> None:
    kept = {
        line.removeprefix("!")
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line.startswith("!")
    }
    text = (ROOT / "Dockerfile").read_text()
    arguments = dict(re.findall(r"^ARG (\w+)=(\S+)$", text, re.MULTILINE))
    text = re.sub(r"\$\{(\w+)\}", lambda name: arguments[name[1]], text)
    for line in re.findall(r"^COPY (?!--from)(.+)$", text, re.MULTILINE):
        for source in line.split()[:-1]:
            assert (ROOT / source).exists(), source
            assert any(source == k or source.startswith(f"{k}/") for k in kept), source


def test_the_reference_is_made_of_what_the_image_of_the_docs_has(tmp_path: Path) -> None:
    stage = (ROOT / "Dockerfile").read_text().partition(" AS docs\n")[2].partition("\nFROM ")[0]
    copied = re.findall(r"^COPY (\S+) \1$", stage, re.MULTILINE)
    for name in ("shardwise", "service", "worker", "agent", "migrations", *copied):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).symlink_to(ROOT / name)
    program = "import sys, tools.reference.__main__\nfor m in list(sys.modules.values()):\n"
    program += "    print(getattr(m, '__file__', None) or '')"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env={**os.environ, "PYTHONPATH": "."},
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    ours = [name for name in done.stdout.splitlines() if "site-packages" not in name]
    assert not [name for name in ours if name.startswith(f"{ROOT}/")]
    assert any(name.endswith("tools/reference/operators.py") for name in ours)


def test_the_service_serves_the_documentation_that_its_image_has() -> None:
    text = (ROOT / "Dockerfile").read_text()
    (folder,) = re.findall(r"^COPY --from=docs /manual (\S+)$", text, re.MULTILINE)
    assert compose_file.images()["service"].environment["SHARDWISE_DOCS_DIR"] == folder
    assert "-b html docs /manual" in text


@pytest.fixture(scope="module")
def compose_schema(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The specification's schema, as the last release of Compose in Python brought it."""
    folder = tmp_path_factory.mktemp("compose")
    subprocess.run(
        [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder,
         "docker-compose==1.29.2"],
        check=True,
    )  # fmt: skip
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        return json.loads(wheel.read("compose/config/compose_spec.json"))


@pytest.mark.parametrize("name", ["docker-compose.yml", "docker-compose.gpu.yml"])
def test_compose_files_follow_the_specification(compose_schema: Any, name: str) -> None:
    document = yaml.safe_load((ROOT / name).read_text())
    # Newer than that release of the schema.
    document.pop("name", None)
    errors = list(jsonschema_rs.Draft7Validator(compose_schema).iter_errors(document))
    assert not errors, [(list(e.instance_path), e.message) for e in errors]
    document["services"]["agent"]["no_such_key"] = 1
    assert not jsonschema_rs.Draft7Validator(compose_schema).is_valid(document)


def test_compose_names_what_there_is() -> None:
    document, containers = compose_file.compose(), compose_file.containers()
    for name, container in containers.items():
        assert container.depends_on.keys() <= containers.keys()
        for source, _ in container.volumes:
            known = source in document["volumes"] or (ROOT / source).exists()
            assert known, f"{name} mounts {source}"
        for other, condition in container.depends_on.items():
            if condition == "service_healthy":
                assert containers[other].health, f"{name} waits for {other}'s health"
    for service in document["services"].values():
        for port in service.get("ports", ()):
            assert port.startswith("127.0.0.1:"), f"{port} is open to all"


def test_compose_makes_one_webhook_key_for_service_and_worker(
    tmp_path: Path,
) -> None:
    document, containers = compose_file.compose(), compose_file.containers()
    script = ROOT / "deploy" / "compose" / "secrets.sh"
    keys = []
    for _ in range(2):
        subprocess.run(["sh", script, tmp_path, "postgres"], check=True)
        for name in ("service", "worker"):
            file = Path(containers[name].environment["SHARDWISE_WEBHOOK_KEY_FILE"])
            assert str(file.parent) in dict(containers[name].volumes).values()
            key = tmp_path / file.name
            assert key.stat().st_mode & 0o077 == 0
            settings = load_settings({}, {"SHARDWISE_WEBHOOK_KEY_FILE": str(key)})
            keys.append(keyring(settings).newest())
    assert keys[0] and keys == keys[:1] * 4
    networks = document["services"]["worker"]["networks"]
    assert any(not (document["networks"][name] or {}).get("internal") for name in networks), (
        "webhooks have no way out"
    )


def test_every_secret_of_the_kubernetes_base_is_one_that_its_readme_makes() -> None:
    readme = (BASE.parent / "README.md").read_text()
    documents = [p.values[0] for p in manifests()]
    config = next(d for d in documents if d["kind"] == "ConfigMap")["data"]
    files = {name: Path(value) for name, value in config.items() if name.endswith("_FILE")}
    assert "SHARDWISE_WEBHOOK_KEY_FILE" in files
    for file in files.values():
        assert file.parent == Path("/run/secrets/shardwise")
        assert f"--from-file={file.name}" in readme


def manifests() -> list[Any]:
    """Every object of the base, named by kind and name."""
    listed = yaml.safe_load((BASE / "kustomization.yaml").read_text())["resources"]
    assert {*listed} == {p.name for p in BASE.glob("*.yaml")} - {"kustomization.yaml"}
    params = []
    for name in listed:
        for document in yaml.safe_load_all((BASE / name).read_text()):
            label = f"{document['kind']}/{document['metadata']['name']}"
            params.append(pytest.param(document, id=label))
    return params


@pytest.mark.parametrize("document", manifests())
def test_manifests_follow_kubernetes_schemas(document: dict[str, Any]) -> None:
    for version in ("1.29", "1.31"):
        kubernetes_validate.validate(document, version, strict=True)


def test_pods_are_restricted_and_found() -> None:
    documents = [p.values[0] for p in manifests()]
    pods = {
        d["metadata"]["name"]: d["spec"]["template"]
        for d in documents
        if d["kind"] in ("Deployment", "DaemonSet", "Job")
    }
    assert {"shardwise-service", "shardwise-worker", "shardwise-agent"} <= pods.keys()
    namespace = next(d for d in documents if d["kind"] == "Namespace")
    enforced = namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"]
    for name, template in pods.items():
        assert template["spec"]["securityContext"]["runAsNonRoot"], name
        spec = template["spec"]
        for volume in spec.get("volumes", ()):
            if "hostPath" in volume:
                assert enforced == "privileged", "the others admit none"
                first = spec["initContainers"][0]
                place = {"name": volume["name"], "mountPath": first["command"][-1]}
                assert first["command"][:2] == ["chown", "10001:10001"], "else it is root's alone"
                assert place in first["volumeMounts"]
        for container in (*spec.get("initContainers", ()), *spec["containers"]):
            context = container["securityContext"]
            assert context["capabilities"]["drop"] == ["ALL"]
            assert context["readOnlyRootFilesystem"] and not context["allowPrivilegeEscalation"]
            assert container["resources"]["limits"]["memory"]
    labels = [t["metadata"]["labels"].items() for t in pods.values()]
    for document in documents:
        selector = document["spec"].get("selector") if "spec" in document else None
        wanted = selector.get("matchLabels", selector) if selector else None
        if document["kind"] in ("Service", "PodDisruptionBudget"):
            assert any(wanted.items() <= pod_labels for pod_labels in labels), document["metadata"][
                "name"
            ]
    known = {field.name for field in fields(Settings)}
    config = next(d for d in documents if d["kind"] == "ConfigMap")
    for variable in config["data"]:
        name = variable.removeprefix("SHARDWISE_").removesuffix("_FILE").lower()
        assert name in known, variable

"""The chart, rendered by Helm's own library (from PyPI, no cluster), and held against Kubernetes' schemas."""

import json
import subprocess

from package_files import ROOT, version
from processes import python

CHART = ROOT / "config" / "deploy" / "helm"
PLAIN = ROOT / "config" / "deploy" / "kubernetes.yaml"
KUBERNETES = "1.34"
# Runs where Helm and the schemas are installed, and prints the configuration of each set of values.
RENDER = """
import json, sys, yaml, kubernetes_validate
from helm_python.chart import Chart, lint
folder, kubernetes, wanted, plain = sys.argv[1:]
# The store may take longer to open than a gateway may be silent; operators reach also a gateway that is not ready.
def look_at(documents, of):
    services = {one["metadata"]["name"]: one["spec"] for one in documents if one["kind"] == "Service"}
    assert services[of + "-operators"]["publishNotReadyAddresses"] is True, services
    assert not services[of].get("publishNotReadyAddresses"), services
    assert services[of + "-operators"]["selector"] == services[of]["selector"], services
    [gateway] = [one["spec"]["template"]["spec"] for one in documents if one["kind"] == "StatefulSet"]
    probe = gateway["containers"][0]["startupProbe"]
    assert probe["httpGet"]["path"] == "/healthz", probe
    assert probe["periodSeconds"] * probe["failureThreshold"] >= 1800, probe
plain = [document for document in yaml.safe_load_all(open(plain)) if document]
for document in plain:
    kubernetes_validate.validate(document, kubernetes, strict=True)
look_at(plain, "oncegate")
said = lint(folder)
assert not said["errors"], said
chart = Chart.load(folder)
configs = {}
for name, values in json.loads(wanted).items():
    kinds, documents = [], []
    chart.validate_schema(chart.merge_values(values))
    for path, text in chart.render(values, name="gate", namespace="tests").items():
        for document in yaml.safe_load_all(text) if path.endswith(".yaml") else []:
            if not document:
                continue
            kinds.append(document["kind"])
            documents.append(document)
            if document["kind"] == "ConfigMap":
                configs[name] = document["data"]["oncegate.toml"]
            if document["kind"] != "ServiceMonitor":
                kubernetes_validate.validate(document, kubernetes, strict=True)
            is_second = "operators" in path
            own = "gate-oncegate-operators" if is_second else "gate-oncegate"
            assert document["metadata"]["name"] == own, document["metadata"]
    look_at(documents, "gate-oncegate")
    configs[name + " kinds"] = sorted(kinds)
for wrong, sentence in [({"store": {"kind": "sqlite"}}, "one gateway"), ({"replica": 2}, "replica")]:
    try:
        chart.validate_schema(chart.merge_values(wrong))
        chart.render(wrong, name="gate", namespace="tests")
    except Exception as why:
        assert sentence in str(why), why
    else:
        raise AssertionError(f"{wrong} is taken")
print(json.dumps(configs))
"""
VALUES = {
    "usual": {},
    "sqlite": {
        "replicas": 1,
        "store": {"kind": "sqlite", "volume": {"storageClassName": "fast"}},
        "secrets": [{"name": "ORDERS_TOKEN", "secret": "orders", "key": "token"}],
        "podAnnotations": {"a": "b"},
        "podLabels": {"c": "d"},
        "nodeSelector": {"e": "f"},
        "pullSecrets": [{"name": "registry"}],
    },
    "postgres": {"store": {"kind": "postgres", "urlSecret": {"name": "oncegate", "key": "ONCEGATE_POSTGRES"}}},
    "all": {"serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}}, "server": {"tlsSecret": "gate-tls"}},
    "least": {"existingConfigMap": "mine", "networkPolicy": {"enabled": False}, "podDisruptionBudget": {"enabled": False}},
}
USUAL = ["ConfigMap", "NetworkPolicy", "PodDisruptionBudget", "Service", "Service", "StatefulSet"]
KINDS = {"usual": USUAL, "sqlite": USUAL, "postgres": USUAL, "all": sorted([*USUAL, "ServiceMonitor"]), "least": ["Service", "Service", "StatefulSet"]}


def the_chart_is_valid(world):
    for key in ("version", "appVersion"):
        wanted = f"{key}: {version()}" if key == "version" else f'{key}: "{version()}"'
        assert f"\n{wanted}\n" in (CHART / "Chart.yaml").read_text(), f"Chart.yaml has another {key} than Cargo.toml"
    command = [python(world.home, "venv"), "-c", RENDER, CHART, KUBERNETES, json.dumps(VALUES), PLAIN]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    for name, kinds in KINDS.items():
        assert said[f"{name} kinds"] == kinds, f"{name}: {said[f'{name} kinds']}"
    for name in ("usual", "sqlite", "postgres"):
        config = world.run / f"chart-{name}.toml"
        config.write_text(said[name])
        env = world.env | {"ONCEGATE_REDIS": "redis://redis:6379", "ONCEGATE_POSTGRES": "postgres://gate:pw@db1,db2/money"}
        checked = subprocess.run([world.binary.path, "check", "--config", config], env=env, capture_output=True, text=True)
        assert checked.returncode == 0, checked.stderr
    return f"as Helm renders it, for Kubernetes {KUBERNETES}"

"""The chart, rendered by Helm's own library (from PyPI, no cluster), and held against Kubernetes' schemas."""

import json
import subprocess

from package_files import ROOT, version
from processes import python

CHART = ROOT / "config" / "deploy" / "helm"
KUBERNETES = "1.34"
# Runs where Helm and the schemas are installed, and prints the configuration of each set of values.
RENDER = """
import json, sys, yaml, kubernetes_validate
from helm_python.chart import Chart, lint
folder, kubernetes, wanted = sys.argv[1:]
said = lint(folder)
assert not said["errors"], said
chart = Chart.load(folder)
configs = {}
for name, values in json.loads(wanted).items():
    kinds = []
    chart.validate_schema(chart.merge_values(values))
    for path, text in chart.render(values, name="gate", namespace="tests").items():
        for document in yaml.safe_load_all(text) if path.endswith(".yaml") else []:
            if not document:
                continue
            kinds.append(document["kind"])
            if document["kind"] == "ConfigMap":
                configs[name] = document["data"]["oncegate.toml"]
            if document["kind"] != "ServiceMonitor":
                kubernetes_validate.validate(document, kubernetes, strict=True)
            assert document["metadata"]["name"] == "gate-oncegate", document["metadata"]
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
    "all": {"serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}}, "server": {"tlsSecret": "gate-tls"}},
    "least": {"existingConfigMap": "mine", "networkPolicy": {"enabled": False}, "podDisruptionBudget": {"enabled": False}},
}
USUAL = ["ConfigMap", "NetworkPolicy", "PodDisruptionBudget", "Service", "StatefulSet"]
KINDS = {"usual": USUAL, "sqlite": USUAL, "all": sorted([*USUAL, "ServiceMonitor"]), "least": ["Service", "StatefulSet"]}


def the_chart_is_valid(world):
    for key in ("version", "appVersion"):
        wanted = f"{key}: {version()}" if key == "version" else f'{key}: "{version()}"'
        assert f"\n{wanted}\n" in (CHART / "Chart.yaml").read_text(), f"Chart.yaml has another {key} than Cargo.toml"
    command = [python(world.home, "venv"), "-c", RENDER, CHART, KUBERNETES, json.dumps(VALUES)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    for name, kinds in KINDS.items():
        assert said[f"{name} kinds"] == kinds, f"{name}: {said[f'{name} kinds']}"
    for name in ("usual", "sqlite"):
        config = world.run / f"chart-{name}.toml"
        config.write_text(said[name])
        env = world.env | {"ONCEGATE_REDIS": "redis://redis:6379"}
        checked = subprocess.run([world.binary.path, "check", "--config", config], env=env, capture_output=True, text=True)
        assert checked.returncode == 0, checked.stderr
    return f"as Helm renders it, for Kubernetes {KUBERNETES}"

"""The image: an OCI layout, written without a daemon. From scratch: the program, whom to trust, and one user."""

import hashlib
import json
import re
import shutil
import subprocess
from pathlib import Path

from package_files import DESCRIPTION, MCP_NAME, Entry, commit_date, git, tarball, version

USER = 10001
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
CONFIG = "/etc/oncegate.toml"
HEALTH = ["oncegate", "health", "--config", CONFIG]
SECOND = 10**9


def root(binary):
    """The files of the image. All is root's, but for the folder that the gateway writes."""
    if not CERTIFICATES.exists():
        raise SystemExit(f"scripts/packages: there is no {CERTIFICATES}, which the image needs: install ca-certificates")
    users = f"root:x:0:0::/:/sbin/nologin\noncegate:x:{USER}:{USER}::/state:/sbin/nologin\n"
    folders = ["etc", "etc/ssl", "etc/ssl/certs", "usr", "usr/local", "usr/local/bin"]
    yield from (Entry(name, None, 0o755) for name in folders)
    yield Entry("etc/passwd", users.encode(), 0o644)
    yield Entry("etc/group", f"root:x:0:\noncegate:x:{USER}:\n".encode(), 0o644)
    yield Entry("etc/ssl/certs/ca-certificates.crt", CERTIFICATES.read_bytes(), 0o644)
    yield Entry("state", None, 0o700, USER)
    # A program that is not static brings what it is linked to; that of a release is.
    if not binary.is_static:
        linked = subprocess.run(["ldd", binary.path], capture_output=True, text=True, check=True).stdout
        for path in re.findall(r"(/\S+)", linked):
            yield Entry(path.lstrip("/"), Path(path).read_bytes(), 0o755)
    yield Entry("usr/local/bin/oncegate", binary.bytes, 0o755)


def layout(out, binary):
    """The layout as one archive, as `docker load`, `podman load` and `skopeo copy oci-archive:…` take it."""
    entries = list(root(binary))
    blobs = {}

    def blob(kind, content):
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        blobs[digest] = content
        return {"mediaType": f"application/vnd.oci.image.{kind}", "digest": digest, "size": len(content)}

    # The program is a layer of its own: the other one stays the same from release to release.
    layers, unzipped = [], []
    for part in (entries[:-1], entries[-1:]):
        unzipped.append(f"sha256:{hashlib.sha256(tarball(part)).hexdigest()}")
        layers.append(blob("layer.v1.tar+gzip", tarball(part, zipped=True)))
    labels = {
        "org.opencontainers.image.title": "oncegate",
        "org.opencontainers.image.description": DESCRIPTION,
        "org.opencontainers.image.version": version(),
        "org.opencontainers.image.revision": git("rev-parse", "HEAD") or "unknown",
        "org.opencontainers.image.licenses": "Apache-2.0",
        # The MCP registry looks for this one.
        "io.modelcontextprotocol.server.name": MCP_NAME,
    }
    created = commit_date()
    platform = {"architecture": binary.oci_processor, "os": "linux"}
    config = platform | {
        "created": created,
        "config": {
            "User": f"{USER}:{USER}",
            "Env": ["PATH=/usr/local/bin", "HOME=/state"],
            "Entrypoint": ["oncegate"],
            "Cmd": ["serve", "--config", CONFIG],
            "WorkingDir": "/state",
            "Volumes": {"/state": {}},
            "ExposedPorts": {"8080/tcp": {}},
            "StopSignal": "SIGTERM",
            "Labels": labels,
            # Not in OCI's own list; Docker and Podman read it.
            "Healthcheck": {
                "Test": ["CMD", *HEALTH],
                "Interval": 5 * SECOND,
                "Timeout": 4 * SECOND,
                "StartPeriod": 5 * SECOND,
                "Retries": 3,
            },
        },
        "rootfs": {"type": "layers", "diff_ids": unzipped},
        "history": [{"created": created, "created_by": "scripts/packages"}] * 2,
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": blob("config.v1+json", json.dumps(config).encode()),
        "layers": layers,
        "annotations": labels,
    }
    described = blob("manifest.v1+json", json.dumps(manifest).encode())
    named = {
        "org.opencontainers.image.ref.name": version(),
        "io.containerd.image.name": f"docker.io/library/oncegate:{version()}",
    }
    index = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [described | {"platform": platform, "annotations": named}],
    }
    files = {"oci-layout": b'{"imageLayoutVersion":"1.0.0"}', "index.json": json.dumps(index).encode()}
    files |= {f"blobs/{digest.replace(':', '/')}": content for digest, content in sorted(blobs.items())}
    folder = out / "oci"
    shutil.rmtree(folder, ignore_errors=True)
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    entries = [Entry("blobs", None, 0o755), Entry("blobs/sha256", None, 0o755)]
    entries += [Entry(name, content, 0o644) for name, content in files.items()]
    (out / f"oncegate-{version()}-{binary.platform}.oci.tar").write_bytes(tarball(entries))

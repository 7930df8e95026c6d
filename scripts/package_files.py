"""What scripts/packages packs: the binary as it is, archives that are the same each time, a wheel, and npm's manifests."""

import base64
import gzip
import hashlib
import io
import os
import re
import struct
import subprocess
import tarfile
import tomllib
import zipfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from time import gmtime, strftime

ROOT = Path(__file__).resolve().parent.parent
MCP_NAME = "io.github.oncegate/oncegate"
DESCRIPTION = "A gateway between AI agents and tools: one intent, at most one side effect"
# Platforms of npm's packages, with what npm calls their system and processor.
PLATFORMS = {
    "linux-x64": ("linux", "x64"),
    "linux-arm64": ("linux", "arm64"),
    "darwin-x64": ("darwin", "x64"),
    "darwin-arm64": ("darwin", "arm64"),
}
# e_machine of ELF, with the names of Linux, npm and OCI.
MACHINES = {62: ("x86_64", "x64", "amd64"), 183: ("aarch64", "arm64", "arm64")}
PT_INTERP = 3


@cache
def version():
    return tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"]


def git(*arguments):
    try:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    except FileNotFoundError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


@cache
def commit_time():
    """In seconds. Archives are dated so, not when they were made."""
    # A zip archive knows no time before 1980.
    return int(git("log", "-1", "--format=%ct") or 315532800)


def commit_date():
    return strftime("%Y-%m-%dT%H:%M:%SZ", gmtime(commit_time()))


class Binary:
    """A Linux program, and what it needs, read from its own header."""

    def __init__(self, path):
        self.path, self.bytes = path.resolve(), path.read_bytes()
        if self.bytes[:6] != b"\x7fELF\x02\x01":
            raise SystemExit(f"scripts/packages: {path} is not a 64-bit Linux program")
        kind = struct.unpack_from("<H", self.bytes, 18)[0]
        if kind not in MACHINES:
            raise SystemExit(f"scripts/packages: {path} is for a processor without a package")
        self.machine, processor, self.oci_processor = MACHINES[kind]
        self.platform = f"linux-{processor}"
        table, (size, count) = struct.unpack_from("<Q", self.bytes, 32)[0], struct.unpack_from("<HH", self.bytes, 54)
        headers = [struct.unpack_from("<I", self.bytes, table + at * size)[0] for at in range(count)]
        # A static program names no loader, also if it can be placed anywhere in memory.
        self.is_static = PT_INTERP not in headers
        self.glibc = max([int(minor) for minor in re.findall(rb"GLIBC_2\.(\d+)", self.bytes)], default=0)
        if self.machine == os.uname().machine:
            said = subprocess.run([self.path, "--version"], capture_output=True, text=True, check=True).stdout.strip()
        else:
            said = f"oncegate {version()} (not run: this machine has another processor)"
        self.said_version = said
        if said.split()[:2] != ["oncegate", version()]:
            raise SystemExit(f"scripts/packages: {path} says {said!r}, and the packages are of {version()}")

    @property
    def wheel_tags(self):
        """A static program runs with any C library; another one with glibc of its newest symbol."""
        if self.is_static:
            names = ["manylinux_2_17", "manylinux2014", "musllinux_1_1"]
        else:
            names = [f"manylinux_2_{self.glibc}"]
        return [f"{name}_{self.machine}" for name in names]


@dataclass
class Entry:
    """A file of an archive, or a folder: without content."""

    name: str
    content: bytes | None
    mode: int
    user: int = 0


def tarball(entries, zipped=False):
    """The same bytes for the same entries."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for entry in entries:
            info = tarfile.TarInfo(entry.name)
            info.mode, info.mtime, info.uid, info.gid = entry.mode, commit_time(), entry.user, entry.user
            if entry.content is None:
                info.type = tarfile.DIRTYPE
                archive.addfile(info)
            else:
                info.size = len(entry.content)
                archive.addfile(info, io.BytesIO(entry.content))
    return gzip.compress(buffer.getvalue(), compresslevel=9, mtime=0) if zipped else buffer.getvalue()


# So that `uvx oncegate-gateway …` works, too: uvx runs the command that is called like the package.
SAME_COMMAND = b'#!/bin/sh\nexec "$(dirname "$0")/oncegate" "$@"\n'


def wheel(out, binary, sbom):
    """Written here and not by maturin, which compiles by itself and takes no program that is there.

    So the wheel has the bytes of the other packages. It is what `bindings = "bin"` makes: the program as a script.
    """
    name = f"oncegate_gateway-{version()}"
    tags = binary.wheel_tags
    readme = (ROOT / "packages" / "pypi" / "README.md").read_text()
    metadata = f"""Metadata-Version: 2.4
Name: oncegate-gateway
Version: {version()}
Summary: {DESCRIPTION}
Keywords: mcp,agents,idempotency,gateway
License-Expression: Apache-2.0
License-File: LICENSE
Classifier: Environment :: Console
Classifier: Operating System :: POSIX :: Linux
Classifier: Programming Language :: Rust
Requires-Python: >=3.8
Description-Content-Type: text/markdown

{readme}"""
    described = "".join(f"Tag: py3-none-{tag}\n" for tag in tags)
    info = f"{name}.dist-info"
    files = {
        f"{name}.data/scripts/oncegate": (binary.bytes, 0o755),
        f"{name}.data/scripts/oncegate-gateway": (SAME_COMMAND, 0o755),
        f"{info}/METADATA": (metadata.encode(), 0o644),
        f"{info}/WHEEL": (
            f"Wheel-Version: 1.0\nGenerator: oncegate\nRoot-Is-Purelib: false\n{described}".encode(),
            0o644,
        ),
        f"{info}/licenses/LICENSE": ((ROOT / "LICENSE").read_bytes(), 0o644),
    }
    if sbom:
        files[f"{info}/sboms/oncegate.cyclonedx.json"] = (sbom, 0o644)
    digest = lambda content: base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    record = "".join(f"{path},sha256={digest(content)},{len(content)}\n" for path, (content, _) in files.items())
    files[f"{info}/RECORD"] = (f"{record}{info}/RECORD,,\n".encode(), 0o644)
    with zipfile.ZipFile(out / f"{name}-py3-none-{'.'.join(tags)}.whl", "w") as archive:
        for path, (content, mode) in files.items():
            entry = zipfile.ZipInfo(path, gmtime(commit_time())[:6])
            entry.external_attr, entry.compress_type = (0o100000 | mode) << 16, zipfile.ZIP_DEFLATED
            archive.writestr(entry, content, compresslevel=9)


def npm_manifest(platform):
    """package.json of a platform's package, or of the launcher."""
    common = {"version": version(), "description": DESCRIPTION, "license": "Apache-2.0"}
    if platform:
        system, processor = PLATFORMS[platform]
        kept = {"os": [system], "cpu": [processor], "files": ["bin"], "preferUnplugged": True}
        return {"name": f"@oncegate/{platform}"} | common | kept
    return (
        {"name": "oncegate"}
        | common
        | {
            "mcpName": MCP_NAME,
            "keywords": ["mcp", "agents", "idempotency", "gateway"],
            "bin": {"oncegate": "oncegate.js"},
            "files": ["oncegate.js"],
            "engines": {"node": ">=18"},
            "optionalDependencies": {f"@oncegate/{name}": version() for name in PLATFORMS},
        }
    )

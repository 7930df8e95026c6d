"""The tests of package_tests.py once more, in a new Debian: by chroot, with Python and curl, and without Rust and checkout.

Takes root, debootstrap, Debian's archive, PyPI and npm's registry. The image is not run there; it is empty enough by itself.
"""

import os
import shutil
import subprocess
from pathlib import Path

from package_files import ROOT

HOME = ROOT / "target" / "package-empty"
SUITE = "bookworm"
# Where Debian has them, so that registries behind a proxy with roots of its own are found from inside, too.
OF_MACHINE = ["/etc/resolv.conf", "/etc/hosts", "/etc/pip.conf", "/etc/ssl/certs/ca-certificates.crt"]
# What tests read beside the built files.
READ = ["Cargo.toml", "README.md", "docker-compose.yml", "config", "packages", "scripts"]
# Settings of this machine for the two registries.
PREFIXES = ("PIP_", "npm_config_", "NODE_EXTRA_", "SSL_", "REQUESTS_", "http_", "https_", "no_", "HTTP_", "HTTPS_", "NO_")
# In namespaces of its own: what is mounted is gone when it ends, and whatever a failed test has left.
INSIDE = """
mount -t proc proc "$0/proc" && mount --rbind /dev "$0/dev" && exec chroot "$0" "$@"
"""


def main(out, binary):
    if os.geteuid() != 0 or not shutil.which("debootstrap"):
        raise SystemExit("scripts/packages empty: takes root and debootstrap")
    system = HOME / "system"
    shutil.rmtree(system, ignore_errors=True)
    (HOME / "archives").mkdir(parents=True, exist_ok=True)
    tools = "bash,ca-certificates,curl,python3,python3-venv"
    options = ["--variant=minbase", f"--include={tools}", f"--cache-dir={HOME / 'archives'}"]
    with open(HOME / "debootstrap.log", "w") as log:
        subprocess.run(["debootstrap", *options, SUITE, system], check=True, stdout=log, stderr=log)
    for path in filter(os.path.exists, OF_MACHINE):
        shutil.copy(path, system / path.lstrip("/"))
    inside = Path("/oncegate")
    folder = system / inside.relative_to("/")
    folder.mkdir()
    for name in READ:
        (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, folder / name)
    shutil.copytree(out, folder / out.relative_to(ROOT))
    shutil.copy(binary.path, folder / "built")
    env = {name: value for name, value in os.environ.items() if name.startswith(PREFIXES) and name != "PIP_FIND_LINKS"}
    env |= {name: os.environ[name] for name in ("ONLY", "MCP_SERVER_SCHEMA") if name in os.environ}
    env |= {"HOME": "/root", "PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "LANG": "C.UTF-8", "ONCEGATE": f"{inside}/built"}
    for tool in ("cargo", "rustc", "git", "node"):
        assert not shutil.which(tool, path=":".join(f"{system}{one}" for one in env["PATH"].split(":"))), f"{tool} is there"
    begin = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", INSIDE, system]
    return subprocess.run([*begin, inside / "scripts" / "packages", "test"], env=env).returncode

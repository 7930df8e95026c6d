"""What was built into target/packages is installed and run, as people do it: by pip, uvx, npm, npx, and as an image.

Takes PyPI and npm's registry. The image needs root, umoci and runc; without them the image is not tested, which is said.
"""

import contextlib
import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import termios
import threading
import time
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import package_chart
import package_image_tests
from package_files import MCP_NAME, PLATFORMS, ROOT, npm_manifest, version
from package_world import Client, Shop, demo_config, ended, group_of, order, pids_below, until
from processes import free_port, install, node, python

HOME = ROOT / "target" / "package-tools"
RUN = ROOT / "target" / "package-tests"
FROM_PYPI = ["uv==0.13.9", "helm-python-sdk==0.2.2", "kubernetes-validate==1.37.0"]
FROM_NPM = ["@modelcontextprotocol/server-everything@2026.8.31"]
# From the start of the launcher to the list of tools.
LIST_S = 2
ENDS_S = 15


class Launcher:
    def __init__(self, name, command, env):
        self.name, self.command, self.env = name, [str(part) for part in command], env


def main(out, binary):
    if not install(HOME, {"venv": FROM_PYPI}, FROM_NPM):
        print(f"scripts/packages: its tools could not be installed into {HOME}; nothing was tested", file=sys.stderr)
        return 0 if os.environ.get("PACKAGES_MAY_BE_LEFT_OUT") else 1
    shutil.rmtree(RUN, ignore_errors=True)
    RUN.mkdir()
    world = World(out, binary)
    failures = 0
    tests = [metadata_says_what_is_inside, pip_takes_the_wheel_of_this_machines_c_library, server_json_follows_its_rules]
    per_launcher = [it_says_its_version, tools_are_listed_in_time, it_ends_with_its_client, a_gateway_serves_and_drains]
    launchers = world.launchers()
    tests += [bound(test, launcher) for launcher in launchers for test in per_launcher]
    tests += [bound(a_second_signal_ends_it_at_once, launcher) for launcher in launchers if launcher.name != "npx"]
    at_home = [launcher for launcher in launchers if launcher.name in ("pip", "npm")]
    tests += [bound(a_home_that_cannot_be_written, launcher) for launcher in at_home]
    tests += [both_files_are_enough_without_a_registry, a_platform_without_a_package_is_named]
    tests += [package_image_tests.the_image_serves, package_chart.the_chart_is_valid]
    only = os.environ.get("ONLY", "")
    for test in tests:
        label = getattr(test, "label", test.__name__).replace("_", " ")
        if only.replace("_", " ") not in label:
            continue
        begun = time.monotonic()
        try:
            remark = test(world)
        except Exception as why:
            failures += 1
            print(f"FAILED  {label}: {type(why).__name__}: {why}", flush=True)
        else:
            print(f"ok      {label} ({time.monotonic() - begun:.1f} s){f': {remark}' if remark else ''}", flush=True)
    world.registry.shutdown()
    print("packages: all passed" if not failures else f"packages: {failures} failed")
    return 1 if failures else 0


def bound(test, launcher):
    def run(world):
        return test(world, launcher)

    run.label = f"{launcher.name}: {test.__name__}"
    return run


class World:
    """The built files, and the tools that install them."""

    def __init__(self, out, binary):
        self.out, self.binary, self.run, self.home = out, binary, RUN, HOME
        self.wheels = sorted(out.glob("*.whl"))
        # One has the binary of all packages; where there is another one, pip prefers that on this machine.
        self.wheel = next(path for path in self.wheels if binary.wheel_tags[0] in path.name)
        self.node = node(HOME, "venv")[0]
        self.npm = self.node.parent.parent / "lib" / "node_modules" / "npm" / "bin"
        self.everything = HOME / "npm/node_modules/@modelcontextprotocol/server-everything/dist/index.js"
        self.venv_bin = HOME / "venv" / "bin"
        home = RUN / "home"
        home.mkdir()
        self.env = {
            "HOME": str(home),
            # Neither Rust nor the checkout is on it.
            "PATH": f"{self.node.parent}:/usr/bin:/bin",
            "UV_CACHE_DIR": str(RUN / "uv"),
            "UV_PYTHON_DOWNLOADS": "never",
            "UV_PYTHON": str(python(HOME, "venv")),
            "npm_config_cache": str(RUN / "npm-cache"),
            "npm_config_update_notifier": "false",
        }
        self.registry = registry(out, binary)

    def launchers(self):
        subprocess.run([python(HOME, "venv"), "-m", "venv", RUN / "pip"], check=True)
        pip = [RUN / "pip/bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index"]
        subprocess.run([*pip, "--find-links", self.out, "oncegate-gateway"], check=True)
        project = RUN / "npm"
        project.mkdir()
        (project / "package.json").write_text("{}")
        # npm's own file of settings, so that the packages of other platforms are found, and passed over.
        port = self.registry.server_address[1]
        (project / ".npmrc").write_text(f"@oncegate:registry=http://127.0.0.1:{port}/\n")
        archive = f"oncegate-{version()}.tgz"
        shutil.copy(self.out / archive, project / archive)
        self.project = project
        quiet = ["--silent", "--no-audit", "--no-fund"]
        command = [self.node, self.npm / "npm-cli.js", "install", *quiet, f"./{archive}"]
        subprocess.run(command, check=True, cwd=project, env=self.env)
        npx = RUN / "npx"
        npx.mkdir()
        shutil.copy(project / ".npmrc", npx)
        shutil.copy(self.out / archive, npx)
        launchers = [
            Launcher("pip", [RUN / "pip/bin/oncegate"], self.env),
            Launcher("uvx", [self.venv_bin / "uvx", "--quiet", "--from", self.wheel, "oncegate"], self.env),
            Launcher("npm", [project / "node_modules/.bin/oncegate"], self.env),
            Launcher("npx", [self.node, self.npm / "npx-cli.js", "-y", f"file:{npx / archive}"], self.env),
        ]
        # The first time is the installation.
        for launcher in launchers:
            subprocess.run([*launcher.command, "--version"], env=self.env, cwd=npx, check=True, stdout=subprocess.DEVNULL)
        return launchers

    def wrap(self, launcher, more=()):
        store = RUN / f"{launcher.name}-{time.monotonic_ns()}.db"
        server = [str(self.node), str(self.everything), "stdio"]
        return [*launcher.command, "wrap", "--store", str(store), *more, "--", *server]


def registry(out, binary):
    """npm's registry for @oncegate, with the one package that was built. The others are known and have no archive."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            name = self.path.replace("%2f", "/").replace("%2F", "/").removeprefix("/@oncegate/")
            archive = out / f"oncegate-{binary.platform}-{version()}.tgz"
            if name == archive.name:
                content, kind = archive.read_bytes(), "application/octet-stream"
            elif name in PLATFORMS:
                url = f"http://{self.headers['host']}/@oncegate/oncegate-{name}-{version()}.tgz"
                manifest = npm_manifest(name) | {"dist": {"tarball": url}}
                packument = {"name": manifest["name"], "dist-tags": {"latest": version()}, "versions": {version(): manifest}}
                content, kind = json.dumps(packument).encode(), "application/json"
            else:
                return self.send_error(404)
            self.send_response(200)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def metadata_says_what_is_inside(world):
    launcher = json.loads((world.out / "npm/oncegate/package.json").read_text())
    assert launcher["mcpName"] == MCP_NAME
    script = (world.out / "npm/oncegate/oncegate.js").read_text()
    assert len(script.splitlines()) <= 30, "the launcher is longer than thirty lines"
    assert not re.search(r"https?:|fetch|console\.|stdout", script), "the launcher downloads or prints"
    for name, (system, processor) in PLATFORMS.items():
        folder = world.out / "npm" / name
        manifest = json.loads((folder / "package.json").read_text())
        assert manifest["name"] == f"@oncegate/{name}" and manifest["version"] == version()
        assert manifest["os"] == [system] and manifest["cpu"] == [processor]
        assert launcher["optionalDependencies"][manifest["name"]] == version()
        assert (folder / "bin/oncegate").exists() == (name == world.binary.platform)
    compose = (ROOT / "docker-compose.yml").read_text()
    assert f"image: oncegate:{version()}\n" in compose, "docker-compose.yml has another version than Cargo.toml"
    sums = subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=world.out)
    assert sums.returncode == 0, "a file is not what SHA256SUMS says"
    text = metadata_of(world.wheel)
    assert f"mcp-name: {MCP_NAME}" in text and "Name: oncegate-gateway\n" in text


def pip_takes_the_wheel_of_this_machines_c_library(world):
    if len(world.wheels) < 2:
        return "not tried: there is one wheel"
    (other,) = set(world.wheels) - {world.wheel}
    assert f"mcp-name: {MCP_NAME}" in metadata_of(other)
    with zipfile.ZipFile(other) as archive:
        program = archive.read(next(name for name in archive.namelist() if name.endswith("/scripts/oncegate")))
    assert (RUN / "pip/bin/oncegate").read_bytes() == program, "pip took the other one"
    assert program != world.binary.bytes


def metadata_of(path):
    with zipfile.ZipFile(path) as archive:
        name = next(name for name in archive.namelist() if name.endswith("/METADATA"))
        return archive.read(name).decode()


def server_json_follows_its_rules(world):
    server = json.loads((world.out / "server.json").read_text())
    assert server["name"] == MCP_NAME and re.fullmatch(r"[a-zA-Z0-9.-]+/[a-zA-Z0-9._-]+", server["name"])
    assert 1 <= len(server["description"]) <= 100 and server["version"] == version()
    assert [package["registryType"] for package in server["packages"]] == ["pypi", "npm", "oci"]
    pypi, npm, oci = server["packages"]
    assert pypi["version"] == npm["version"] == version() and oci["identifier"].endswith(f":{version()}")
    # The registry's own schema is not ours to keep here.
    schema = os.environ.get("MCP_SERVER_SCHEMA")
    if not schema:
        return "not against the registry's schema: MCP_SERVER_SCHEMA names no file"
    check = "import json, jsonschema, sys; jsonschema.validate(*[json.load(open(path)) for path in sys.argv[1:]])"
    subprocess.run([python(HOME, "venv"), "-c", check, world.out / "server.json", schema], check=True)
    return "against the registry's schema, too"


def it_says_its_version(world, launcher):
    done = subprocess.run([*launcher.command, "--version"], env=launcher.env, cwd=RUN, capture_output=True, text=True)
    if launcher.name != "pip" or len(world.wheels) == 1:
        assert done.stdout == f"{world.binary.said_version}\n", done
    assert done.stdout.startswith(f"oncegate {version()}") and done.returncode == 0, done
    if launcher.name in ("pip", "uvx"):
        # The command that uvx looks for if it is told the package only.
        same = [*launcher.command[:-1], launcher.command[-1] + "-gateway", "--version"]
        assert subprocess.check_output(same, env=launcher.env, cwd=RUN, text=True) == done.stdout
    wrong = subprocess.run([*launcher.command, "check", "--config", "missing"], env=launcher.env, cwd=RUN, capture_output=True)
    assert wrong.returncode == 1 and wrong.stdout == b"" and b"missing" in wrong.stderr, wrong


def tools_are_listed_in_time(world, launcher):
    took = []
    # Other work of the machine may be in the way, of npx more than of the others.
    while len(took) < 3 or (len(took) < 8 and min(took) > LIST_S):
        begun = time.monotonic()
        client = Client(world.wrap(launcher), launcher.env, RUN)
        tools = client.begin()
        took.append(time.monotonic() - begun)
        assert len(tools) > 5, tools
        client.close()
    assert min(took) <= LIST_S or not world.binary.is_static, f"{min(took):.2f} s"
    return f"tools/list after {', '.join(f'{one:.2f}' for one in took)} s"


def it_ends_with_its_client(world, launcher):
    for how in ["SIGINT", "SIGTERM", "closed", "killed launcher", "killed client"]:
        own = how == "killed client"
        client = Client(world.wrap(launcher), launcher.env, RUN, between=own)
        if not own:
            client.begin()
        processes = pids_below(client.process.pid)
        assert len(processes) >= 2, f"{how}: nothing runs"
        match how:
            case "closed":
                client.process.stdin.close()
            case "killed launcher":
                client.process.kill()
                client.process.stdin.close()
            case "killed client":
                client.process.kill()
            case "SIGINT" if launcher.name == "npx":
                # As a terminal does. The shell between npm and the launcher passes on nothing that only npm gets.
                os.killpg(group_of(client.process.pid), signal.SIGINT)
            case _:
                client.process.send_signal(getattr(signal, how))
        assert until(lambda: not [pid for pid in processes if not ended(pid)], ENDS_S), f"{how}: something still runs"
        client.process.wait()
        assert not client.other, f"{how}: not MCP on standard output: {client.other}"
        if how in ("closed", "SIGTERM"):
            assert client.process.returncode in (0, 143, -15), f"{how}: {client.process.returncode}"


def a_gateway_serves_and_drains(world, launcher):
    """README's first curl. A stop waits for it, also if each of its processes gets the signal and passes it on, too."""
    # The shell between npm and the launcher passes on nothing that only npx gets.
    for how in ["SIGTERM", "Ctrl-C", "SIGINT to all", *(["SIGINT"] if launcher.name != "npx" else [])]:
        with Shop() as shop:
            terminal, end = os.openpty() if how == "Ctrl-C" else (None, None)
            process, port, folder = served(world, launcher, how, shop, end)
            answers = []
            caller = threading.Thread(target=lambda: answers.append(order(port)))
            caller.start()
            assert until(lambda: shop.begun, 10), "the call does not begin"
            processes = pids_below(process.pid)
            if how == "Ctrl-C":
                os.write(terminal, b"\x03")
            elif how == "SIGINT to all":
                os.killpg(process.pid, signal.SIGINT)
            else:
                process.send_signal(getattr(signal, how))
            caller.join()
            assert answers and answers[0].get("status") == "ok", f"{how}: the running call was answered {answers}"
            assert until(lambda: process.poll() is not None and all(map(ended, processes)), ENDS_S), f"{how}: it goes on"
            # npx and uvx have a status of their own for an interruption.
            allowed = (0,) if how == "SIGTERM" else (0, 130, -2)
            assert process.returncode in allowed or launcher.name == "npx", f"{how}: {process.returncode}"
            if terminal:
                os.close(terminal)


def served(world, launcher, name, shop, terminal):
    """A gateway in a session of its own, at a terminal if there is one. Returns it when it is ready."""
    folder, port = RUN / f"{launcher.name}-{name.replace(' ', '-')}", free_port()
    folder.mkdir()
    (folder / "oncegate.toml").write_text(demo_config(f"127.0.0.1:{port}", "oncegate.db", shop))
    log = open(folder / "log", "w")
    process = subprocess.Popen(
        [*launcher.command, "serve", "--config", "oncegate.toml"],
        env=launcher.env,
        cwd=folder,
        stdout=log,
        stderr=log,
        stdin=terminal or subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=(lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0)) if terminal else None,
    )
    if terminal:
        os.close(terminal)
    health = [*launcher.command, "health", "--url", f"http://127.0.0.1:{port}"]
    ready = lambda: subprocess.run(health, env=launcher.env, cwd=RUN, capture_output=True).returncode == 0
    assert until(ready, 30), f"it does not serve, see {folder}/log"
    return process, port, folder


def a_second_signal_ends_it_at_once(world, launcher):
    """Without a terminal, as a supervisor sends it. A call that runs is not waited for, and is unknown."""
    with Shop() as shop:
        process, port, folder = served(world, launcher, "twice", shop, None)
        caller = threading.Thread(target=answer_or_none, args=(port,))
        caller.start()
        assert until(lambda: shop.begun, 10), "the call does not begin"
        processes = pids_below(process.pid)
        begun = time.monotonic()
        process.send_signal(signal.SIGINT)
        # The launcher of npm counts what comes within half a second as one.
        time.sleep(0.7)
        process.send_signal(signal.SIGINT)
        assert until(lambda: process.poll() is not None and all(map(ended, processes)), ENDS_S), "it goes on"
        took = time.monotonic() - begun
        caller.join()
        assert "second stop signal" in (folder / "log").read_text(), f"see {folder}/log"
        return f"after {took:.1f} s"


def answer_or_none(port):
    with contextlib.suppress(AssertionError):
        return order(port)


def a_home_that_cannot_be_written(world, launcher):
    if os.geteuid() != 0:
        return "not tried: only root can become a user without a home"
    read_only = RUN / "read-only"
    read_only.mkdir(mode=0o555, exist_ok=True)
    for home, sentence in [(str(read_only), "Permission denied"), (None, "--store")]:
        env = {name: value for name, value in launcher.env.items() if name != "HOME"}
        if home:
            env["HOME"] = home
        command = [*launcher.command, "wrap", "--", "cat"]
        run = lambda command, folder: subprocess.run(
            command, env=env, cwd=folder, user=10001, group=10001, extra_groups=[], capture_output=True, text=True, input=""
        )
        done = run(command, "/")
        assert done.returncode == 1 and done.stdout == "" and sentence in done.stderr, done
        assert len(done.stderr.strip().splitlines()) <= 2, done.stderr
        folder = RUN / f"written-{launcher.name}-{bool(home)}"
        folder.mkdir()
        os.chown(folder, 10001, 10001)
        done = run([*launcher.command, "wrap", "--store", folder / "calls.db", "--", "cat"], folder)
        assert done.returncode == 0 and done.stdout == "", done


def both_files_are_enough_without_a_registry(world):
    folder = RUN / "offline"
    folder.mkdir()
    (folder / "package.json").write_text("{}")
    files = [f"oncegate-{world.binary.platform}-{version()}.tgz", f"oncegate-{version()}.tgz"]
    for file in files:
        shutil.copy(world.out / file, folder)
    # Nothing listens there.
    env = world.env | {"npm_config_registry": "http://127.0.0.1:9/", "npm_config_fetch_retries": "0"}
    quiet = ["--silent", "--no-audit", "--no-fund"]
    command = [world.node, world.npm / "npm-cli.js", "install", *quiet, *(f"./{file}" for file in files)]
    subprocess.run(command, check=True, cwd=folder, env=env)
    said = subprocess.check_output([folder / "node_modules/.bin/oncegate", "--version"], env=world.env, text=True)
    assert said == f"{world.binary.said_version}\n", said


def a_platform_without_a_package_is_named(world):
    pretend = RUN / "pretend.js"
    pretend.write_text('Object.defineProperty(process, "platform", { value: "sunos" });\n')
    script = world.project / "node_modules/oncegate/oncegate.js"
    done = subprocess.run([world.node, "-r", pretend, script, "--version"], capture_output=True, text=True, env=world.env)
    assert done.returncode == 1 and done.stdout == "", done
    assert done.stderr.startswith("oncegate: there is no package @oncegate/sunos-x64 for this platform, only @oncegate/linux-x64")
    alone = RUN / "alone"
    shutil.copytree(world.out / "npm/oncegate", alone)
    done = subprocess.run([world.node, alone / "oncegate.js", "--version"], capture_output=True, text=True, env=world.env)
    wanted = (
        f"oncegate: the package @oncegate/{world.binary.platform} is not installed; install oncegate without --omit=optional\n"
    )
    assert (done.returncode, done.stdout, done.stderr) == (1, "", wanted), done

"""The image as it was built, unpacked by umoci and run by runc: read-only, as its user, with its own health check."""

import json
import os
import shutil
import subprocess
import threading

from package_files import version
from package_image import CONFIG, HEALTH, USER
from package_world import ANSWER_S, Slow, gateway_config, post, until
from processes import free_port

NAME = f"oncegate-packages-{os.getpid()}"


def the_image_serves(world):
    if os.geteuid() != 0 or not all(map(shutil.which, ["umoci", "runc"])):
        return "not run: that takes root, umoci and runc"
    bundle, port = world.run / "image", free_port()
    unpack = ["umoci", "unpack", "--image", f"{world.out / 'oci'}:{version()}", bundle]
    subprocess.run(unpack, check=True, capture_output=True)
    root = bundle / "rootfs"
    assert not (root / "bin").exists(), "an image from scratch has no shell"
    state, config = world.run / "state", world.run / "image.toml"
    shutil.copytree(root / "state", state)
    os.chown(state, USER, USER)
    with Slow(seconds=2) as tool:
        config.write_text(gateway_config(f"0.0.0.0:{port}", "/state/oncegate.db", tool.url))
        (root / CONFIG.lstrip("/")).touch()
        described = json.loads((bundle / "config.json").read_text())
        process = described["process"]
        assert process["user"]["uid"] == USER and process["cwd"] == "/state", process
        assert process["args"] == ["oncegate", "serve", "--config", CONFIG], process["args"]
        process["terminal"] = False
        described["root"]["readonly"] = True
        described["linux"]["namespaces"] = [one for one in described["linux"]["namespaces"] if one["type"] != "network"]
        # The volume, and the configuration.
        for source, target, options in [(state, "/state", []), (config, CONFIG, ["ro"])]:
            mount = {"destination": target, "type": "bind", "source": str(source), "options": ["bind", *options]}
            described["mounts"] = [one for one in described["mounts"] if one["destination"] != target] + [mount]
        (bundle / "config.json").write_text(json.dumps(described))
        log = open(world.run / "image.log", "w")
        running = subprocess.Popen(["runc", "run", "--bundle", bundle, NAME], stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        try:
            return watched(running, tool, port)
        finally:
            subprocess.run(["runc", "delete", "--force", NAME], capture_output=True)
            running.wait(ANSWER_S)


def watched(running, tool, port):
    health = lambda: subprocess.run(["runc", "exec", NAME, *HEALTH], capture_output=True, text=True)
    assert until(lambda: health().returncode == 0, 30), f"it is not healthy: {health().stderr}"
    assert health().stdout == f"http://127.0.0.1:{port} is ready\n", health()
    body = {"args": {"business_id": "B-1"}}
    status, answer = post(port, body)
    assert status == 200 and answer["result"] == {"done": 42}, answer
    status, answer = post(port, body)
    assert status == 200 and answer["replayed"] and tool.begun == 1, answer
    answers = []
    caller = threading.Thread(target=lambda: answers.append(post(port, {"args": {"business_id": "B-2"}})))
    caller.start()
    assert until(lambda: tool.begun == 2, 10), "the second call does not begin"
    subprocess.run(["runc", "kill", NAME, "TERM"], check=True)
    caller.join()
    assert answers[0][0] == 200, f"the running call was answered {answers}"
    assert running.wait(ANSWER_S) == 0, running.returncode
    return "by runc, with a read-only root; SIGTERM lets the running call end"

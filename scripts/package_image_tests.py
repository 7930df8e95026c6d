"""The image as it was built, unpacked by umoci and run by runc: read-only, as its user, with its own health check."""

import json
import os
import shutil
import subprocess
import threading

from package_files import version
from package_image import CONFIG, HEALTH, USER
from package_world import ANSWER_S, TOKEN, TOKENS, Shop, demo_config, order, until
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
    with Shop() as shop:
        config.write_text(demo_config(f"0.0.0.0:{port}", "/state/oncegate.db", shop) + TOKENS)
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
            return watched(running, shop, port)
        finally:
            subprocess.run(["runc", "delete", "--force", NAME], capture_output=True)
            running.wait(ANSWER_S)


def watched(running, shop, port):
    health = lambda: subprocess.run(["runc", "exec", NAME, *HEALTH], capture_output=True, text=True)
    assert until(lambda: health().returncode == 0, 30), f"it is not healthy: {health().stderr}"
    assert health().stdout == f"http://127.0.0.1:{port} is ready\n", health()
    answer = order(port, token=TOKEN)
    assert answer.get("status") == "ok" and not answer["replayed"], answer
    answer = order(port, token=TOKEN)
    assert answer["replayed"] and shop.begun == 1, answer
    answers = []
    caller = threading.Thread(target=lambda: answers.append(order(port, "B-2", TOKEN)))
    caller.start()
    assert until(lambda: shop.begun == 2, 10), "the second call does not begin"
    subprocess.run(["runc", "kill", NAME, "TERM"], check=True)
    caller.join()
    assert answers and answers[0].get("status") == "ok", f"the running call was answered {answers}"
    assert running.wait(ANSWER_S) == 0, running.returncode
    return "README's first curl, by runc, with a read-only root; SIGTERM lets the running call end"

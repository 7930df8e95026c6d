"""Histories as Jepsen writes them, one JSON object a line, and the process of crates/judge that judges them."""

import json
import subprocess
import threading
import time

# What is said of a call by them, if they say that nothing was executed.
OF_THE_CALL = {
    "tool-rejected", "tool-unreachable", "tool-unavailable", "session-busy", "session-frozen", "store-unavailable",
    "shutting-down", "tool-paused", "rate-limited", "stale-fencing-token",
}


def now():
    return time.monotonic_ns()


class History:
    """Operations of processes on objects. Each operation is a process of its own, as after each `info` in Jepsen."""

    def __init__(self):
        self.events, self.count, self.lock = [], 0, threading.Lock()

    def begin(self, f, key, value=None, at=None, process=None):
        """An operation that has begun; nobody knows how it ends until `end`."""
        with self.lock:
            self.count += 1
            process = f"{process or f}-{self.count}"
            self.add(at or now(), process, "invoke", f, key, value)
        return process, f, key

    def end(self, begun, kind, value=None, at=None):
        """`ok`: it was so; `fail`: it surely was not; `info`: nobody knows, and it may still happen."""
        process, f, key = begun
        with self.lock:
            self.add(at or now(), process, kind, f, key, value)

    def point(self, f, key, asked=None, told=None, at=None, begin=None):
        """An operation that was so, and is over."""
        at = at or now()
        self.end(self.begin(f, key, asked, begin or at), "ok", told, at)

    def add(self, *values):
        self.events.append(dict(zip(("time", "process", "type", "f", "key", "value"), values)))

    def forget(self, is_out):
        """Takes out what is not to be judged."""
        with self.lock:
            self.events = [event for event in self.events if not is_out(event)]

    def write(self, file):
        with self.lock:
            events = sorted(self.events, key=lambda event: event["time"])
        file.write("".join(json.dumps(event) + "\n" for event in events))


class Judge:
    """crates/judge as a process: a history goes in, and what is wrong with it comes out."""

    def __init__(self, binary):
        self.process = subprocess.Popen([binary], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def judge(self, history):
        history.write(self.process.stdin)
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError("the judge has ended")
        return json.loads(line)

    def stop(self):
        self.process.kill()
        self.process.wait()

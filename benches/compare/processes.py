"""Processes that are measured, and that nothing of them is left behind."""

import atexit
import json
import os
import signal
import socket
import subprocess
import sys
import time

_started = []


def kill_all_at_exit():
    atexit.register(_kill_all)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(130))


def _kill_all():
    for process in _started:
        kill(process)


def start(command, log_path, env=None):
    """Starts a process in a group of its own; all it says goes to the file."""
    with open(log_path, "ab") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, env={**os.environ, **(env or {})}
        )
    _started.append(process)
    return process


def kill(process):
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if process in _started:
        _started.remove(process)


def stop(process, seconds=20):
    """SIGTERM, and SIGKILL to one that stays."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            pass
    kill(process)


def client(command, raw_path, env=None, seconds=300):
    """Runs a client to its end. Returns what it printed and its processor seconds; keeps both beside the raw results."""
    with open(raw_path, "wb") as raw:
        raw.write(("$ " + " ".join(command) + "\n").encode())
        raw.flush()
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=raw, stderr=subprocess.STDOUT, start_new_session=True, env={**os.environ, **(env or {})}
        )
        _started.append(process)
        timer_end = time.monotonic() + seconds
        while True:
            # wait4 gives what this one child used, however many others there are.
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
            if pid:
                break
            if time.monotonic() > timer_end:
                os.killpg(process.pid, signal.SIGKILL)
                os.wait4(process.pid, 0)
                process.returncode = -9
                _started.remove(process)
                raise RuntimeError(f"{command[0]} did not end in {seconds} s; see {raw_path}")
            time.sleep(0.002)
        process.returncode = os.waitstatus_to_exitcode(status)
        _started.remove(process)
    with open(raw_path, encoding="utf-8", errors="replace") as raw:
        text = raw.read()
    if process.returncode != 0:
        raise RuntimeError(f"{command[0]} ended with {process.returncode}; see {raw_path}\n{text[-2000:]}")
    return text, usage.ru_utime + usage.ru_stime


def last_json(text):
    """The last line of an output that is a JSON object."""
    lines = [line for line in text.splitlines() if line.startswith("{")]
    return json.loads(lines[-1])


def cpu_seconds(pid):
    """Processor time of a process so far, ended threads included (in ticks of 10 ms)."""
    with open(f"/proc/{pid}/stat", encoding="utf-8") as stat:
        fields = stat.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_bytes(pid):
    with open(f"/proc/{pid}/status", encoding="utf-8") as status:
        for line in status:
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
    return 0


def anonymous_bytes(pid):
    """What of the resident memory is the process's own, mapped files left out."""
    with open(f"/proc/{pid}/status", encoding="utf-8") as status:
        for line in status:
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
    return 0


def disk_bytes(directory):
    """Blocks that the files below a directory hold."""
    total = 0
    for where, _, names in os.walk(directory):
        for name in names:
            try:
                total += os.lstat(os.path.join(where, name)).st_blocks * 512
            except FileNotFoundError:
                pass
    return total


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def first_answer(process, port, request, is_answer, seconds=60):
    """Tries a connection every millisecond until the request is answered."""
    begin = time.monotonic()
    while time.monotonic() - begin < seconds:
        if process.poll() is not None:
            raise RuntimeError(f"the broker ended with {process.returncode}")
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=5) as s:
                s.sendall(request)
                if is_answer(s.recv(4096)):
                    return
        except OSError:
            pass
        time.sleep(0.001)
    raise RuntimeError(f"no answer on port {port} in {seconds} s")

"""What is measured, in which order; each cell leaves a JSON file and the client's own words under raw/."""

import json
import os
import platform
import subprocess
import sys
import time

import processes
from peers import FSYNC, NONE

SIZES = (100, 1024, 10240)
# Records of a cell's first try, from which its number is found. Multiples of 8,192, so that every pipeline and connection is full.
FIRST_RECORDS = {NONE: {100: 204_800, 1024: 40_960, 10240: 8_192}, FSYNC: {100: 40_960, 1024: 8_192, 10240: 8_192}}
RECORDS_UNIT = 8_192
TRIES_MAX = 3
LATENCY_SIZE = 100
SETTLE_SECONDS = 5
FILL_SIZE = 1024


def note_machine(out, arguments, peers, missing, root):
    """Versions, settings and machine, for the head of the report."""
    with open("/proc/cpuinfo", encoding="utf-8") as info:
        cpu = next((line.partition(":")[2].strip() for line in info if line.startswith("model name")), "unknown processor")
    with open("/proc/meminfo", encoding="utf-8") as info:
        memory = int(info.readline().split()[1]) >> 20
    file_system = subprocess.run(["stat", "-f", "-c", "%T", out], check=True, text=True, capture_output=True).stdout.strip()
    notes = {
        "machine": f"{cpu}, {os.cpu_count()} cores, {memory} GiB, Linux {platform.release().split('-')[0]}, {file_system}",
        "arguments": {k: v for k, v in vars(arguments).items() if k not in ("fresh", "report_only", "only")},
        "versions": {p.name: p.files["version"] for p in peers},
        "settings": {p.name: {d: p.settings(d) for d in (NONE, FSYNC)} for p in peers},
        "missing": missing,
    }
    path = os.path.join(out, "notes.json")
    if os.path.exists(path) and not arguments.fresh:
        with open(path, encoding="utf-8") as before:
            old = json.load(before)
        for part in ("versions", "settings"):
            notes[part] = {**old[part], **notes[part]}
    with open(path, "w", encoding="utf-8") as file:
        json.dump(notes, file, indent=1)


def names(peer, durability):
    """The cells of one start of a broker, in order."""
    found = ["start"]
    for size in SIZES:
        for client, all_connections in peer.clients.items():
            for connections in all_connections:
                found.append(f"produce-{client}-{size}-{connections}")
                if durability == NONE:
                    found.append(f"consume-{client}-{size}-{connections}")
    found.append("latency")
    if durability == NONE:
        found.append("fill")
    return found


def path_of(out, repeat, durability, peer, name):
    return os.path.join(out, "raw", f"{peer.name}.{durability}.{name}.{repeat}.json")


def load(path):
    try:
        with open(path, encoding="utf-8") as file:
            result = json.load(file)
    except FileNotFoundError:
        return None
    return None if "error" in result else result


def measure(out, arguments, peers):
    began = time.monotonic()
    for repeat in range(1, arguments.repeats + 1):
        # Another order each time, so that nobody is always first.
        shift = (repeat - 1) % max(1, len(peers))
        for durability in (NONE, FSYNC):
            for peer in peers[shift:] + peers[:shift]:
                session = Session(out, arguments, repeat, durability, peer)
                minutes = (time.monotonic() - began) / 60
                if session.todo and minutes > arguments.minutes:
                    print(f"compare: {arguments.minutes:g} minutes are over; the same command goes on here", file=sys.stderr)
                    return
                if session.todo:
                    print(f"{minutes:5.1f} min  {peer.name}, {durability}, repeat {repeat}: {len(session.todo)} cells", file=sys.stderr)
                    session.run()


class Session:
    """One start of one broker and all its cells."""

    def __init__(self, out, arguments, repeat, durability, peer):
        self.out, self.arguments, self.repeat, self.durability, self.peer = out, arguments, repeat, durability, peer
        self.todo = [n for n in names(peer, durability) if arguments.fresh or load(self.path(n)) is None]

    def path(self, name, repeat=None):
        return path_of(self.out, repeat or self.repeat, self.durability, self.peer, name)

    def raw(self, name):
        return self.path(name).replace(".json", ".txt")

    def keep(self, name, result):
        with open(self.path(name), "w", encoding="utf-8") as file:
            json.dump(result, file)

    def run(self):
        peer = self.peer
        try:
            seconds = peer.start(os.path.join(self.out, "run"), self.durability)
            time.sleep(1)
            if "start" in self.todo:
                pid = peer.process.pid
                self.keep("start", {"seconds": seconds, "rss": processes.resident_bytes(pid), "anon": processes.anonymous_bytes(pid)})
            for size in SIZES:
                for client, all_connections in peer.clients.items():
                    for connections in all_connections:
                        self.attempt(self.throughput, client, size, connections)
            self.attempt(self.latency)
            self.attempt(self.fill)
        except RuntimeError as error:
            print(f"compare: {peer.name}: {error}", file=sys.stderr)
        finally:
            if peer.process is not None:
                peer.stop()

    def attempt(self, cell, *arguments):
        """A cell that fails does not take the others along, unless the broker is gone."""
        try:
            cell(*arguments)
        except (RuntimeError, OSError, IndexError, ValueError, KeyError) as error:
            print(f"compare: {self.peer.name} {cell.__name__} {arguments}: {error}", file=sys.stderr)
            self.keep("-".join(map(str, (cell.__name__, *arguments))), {"error": str(error)})
            if self.peer.process.poll() is not None:
                raise RuntimeError("the broker is gone") from error

    def timed(self, call, raw_name, *arguments):
        """A client's run with the processor time of both sides."""
        before = processes.cpu_seconds(self.peer.process.pid)
        result, client_cpu = call(*arguments, self.raw(raw_name))
        return {**result, "broker_cpu": processes.cpu_seconds(self.peer.process.pid) - before, "client_cpu": client_cpu}

    def throughput(self, client, size, connections):
        produce, consume = (f"{kind}-{client}-{size}-{connections}" for kind in ("produce", "consume"))
        if produce not in self.todo and consume not in self.todo:
            return
        peer = self.peer
        known = load(self.path(produce, 1))
        records = known["records"] if known else FIRST_RECORDS[self.durability][size]
        records_max = max(RECORDS_UNIT, self.arguments.cell_bytes // size // RECORDS_UNIT * RECORDS_UNIT)
        for number in range(TRIES_MAX):
            # A name for each try: a deleted topic may linger.
            topic = f"t{size}x{connections}{client}try{number}"
            peer.create(topic, connections)
            disk = peer.data_bytes()
            result = self.timed(peer.produce, produce, client, topic, connections, records, size, self.durability)
            factor = self.arguments.seconds / max(result["seconds"], 1e-3)
            enough = min(records_max, int(records * factor) // RECORDS_UNIT * RECORDS_UNIT)
            if known or enough < records * 1.5 or number + 1 == TRIES_MAX:
                break
            peer.delete(topic, connections)
            records = enough
        self.keep(produce, {**result, "size": size, "disk": peer.data_bytes() - disk})
        if consume in self.todo:
            self.keep(consume, {**self.timed(peer.consume, consume, client, topic, connections, records, size), "size": size})
        peer.delete(topic, connections)

    def latency(self):
        if "latency" in self.todo:
            a = self.arguments
            # What the cells before left dirty is on the disk, and what they deleted is gone: neither is a part of this.
            os.sync()
            time.sleep(SETTLE_SECONDS)
            self.keep("latency", self.timed(self.peer.latency, "latency", "latency", a.rate, a.latency_seconds, LATENCY_SIZE))

    def fill(self):
        """Resident memory after much was written, in pieces of what a client does at a time."""
        if "fill" not in self.todo:
            return
        peer, client = self.peer, list(self.peer.clients)[-1]
        records = self.arguments.fill_bytes // FILL_SIZE // RECORDS_UNIT * RECORDS_UNIT
        peer.create("fill", 1)
        result = self.timed(peer.produce, "fill", client, "fill", 1, records, FILL_SIZE, self.durability)
        time.sleep(1)
        pid = peer.process.pid
        self.keep("fill", {**result, "rss": processes.resident_bytes(pid), "anon": processes.anonymous_bytes(pid)})

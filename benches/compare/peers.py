"""Each broker with its settings and its best clients. Every choice here has its reason in README.md."""

import os
import re
import shutil
import socket
import sys
import time

import processes

FSYNC, NONE = "fsync", "none"
# Seconds of the same load before a latency counts. The other clients do it by themselves.
WARM_UP_SECONDS = 3


class Peer:
    """A broker that is started on loopback, and what its clients do to it."""

    name = ""
    # For each kind of client, which numbers of connections it is measured with.
    clients = {"own": (1, 16)}

    def __init__(self, files):
        self.files = files
        self.process = self.directory = self.port = None

    def start(self, directory, durability):
        """Starts it on an empty directory. Returns the seconds to its first answer."""
        shutil.rmtree(directory, ignore_errors=True)
        os.makedirs(directory)
        self.directory = directory
        self.port = processes.free_port()
        command, env = self.prepare(durability)
        begin = time.monotonic()
        self.process = processes.start(command, os.path.join(directory, "broker.log"), env)
        processes.first_answer(self.process, self.port, *self.greeting)
        return time.monotonic() - begin

    def stop(self):
        processes.stop(self.process)
        shutil.rmtree(self.directory, ignore_errors=True)

    def data_bytes(self):
        return processes.disk_bytes(os.path.join(self.directory, "data"))

    def create(self, topic, connections):
        """Where a client does not make its topic itself."""

    def address(self):
        return f"127.0.0.1:{self.port}"


class MiniBroker(Peer):
    name = "mini-broker"
    greeting = (b"PING\n", lambda reply: reply == b"OK PONG\n")
    # The load generator's topic.
    TOPIC = "bench"
    # Payload of a BATCH, about: what Kafka's Java client is given, too.
    BATCH_BYTES = 64 << 10

    def settings(self, durability):
        return "--fsync " + {FSYNC: "always", NONE: "never"}[durability]

    def prepare(self, durability):
        data = os.path.join(self.directory, "data")
        return [self.files["broker"], "serve", "--listen", self.address(), "--data-dir", data, *self.settings(durability).split()], None

    def load(self, mode, raw, *more):
        command = [self.files["load"], "--mode", mode, "--addr", self.address(), "--json", "--no-floor", *map(str, more)]
        text, cpu = processes.client(command, raw)
        return processes.last_json(text), cpu

    def produce(self, client, topic, connections, records, size, durability, raw):
        batch = max(1, self.BATCH_BYTES // size)
        shape = ["--size", size, "--connections", connections, "--partitions", connections]
        return self.load("produce", raw, *shape, "--records", records, "--keep", "--verb", "batch", "--batch", batch, "--depth", 64)

    def consume(self, client, topic, connections, records, size, raw):
        shape = ["--size", size, "--connections", connections, "--partitions", connections]
        return self.load("fetch", raw, *shape, "--records", records, "--keep", "--decode")

    def latency(self, topic, rate, seconds, size, raw):
        self.load("tail", raw, "--rate", rate, "--records", rate * WARM_UP_SECONDS, "--size", size)
        return self.load("tail", raw, "--rate", rate, "--records", rate * seconds, "--size", size)

    def delete(self, topic, connections):
        with socket.create_connection(("127.0.0.1", self.port), timeout=60) as s:
            s.sendall(f"DELETE {self.TOPIC}\n".encode())
            reply = s.recv(1000)
        if reply != b"OK\n":
            raise RuntimeError(f"DELETE was answered {reply}")


class Kafka(Peer):
    name = "kafka"
    # ProducerPerformance and ConsumerPerformance are one client each; sixteen of them would be sixteen virtual machines on two cores.
    clients = {"java": (1,), "librdkafka": (1, 16)}
    # ApiVersions, version 0: key 18, correlation 1, client "c". Its answer repeats the correlation.
    greeting = (
        bytes.fromhex("0000000b" "0012" "0000" "00000001" "0001" "63"),
        lambda reply: reply[4:8] == b"\0\0\0\1",
    )
    # As Kafka's own start script has them.
    JVM = "-Xmx1G -Xms1G -server -XX:+UseG1GC -XX:MaxGCPauseMillis=20 -XX:InitiatingHeapOccupancyPercent=35 -XX:+ExplicitGCInvokesConcurrent"
    PRODUCER = "acks=all batch.size=65536 linger.ms=5 buffer.memory=67108864"

    def settings(self, durability):
        return {FSYNC: "log.flush.interval.messages=1", NONE: "no flush settings (the default)"}[durability]

    def java(self, heap, *arguments):
        return ["java", *heap.split(), "-cp", os.path.join(self.files["libs"], "*"), *arguments]

    def prepare(self, durability):
        controller = processes.free_port()
        properties = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.bootstrap.servers": f"127.0.0.1:{controller}",
            "listeners": f"PLAINTEXT://{self.address()},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"PLAINTEXT://{self.address()}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": os.path.join(self.directory, "data"),
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
        }
        if durability == FSYNC:
            properties["log.flush.interval.messages"] = "1"
        path = os.path.join(self.directory, "server.properties")
        with open(path, "w", encoding="utf-8") as out:
            out.writelines(f"{name}={value}\n" for name, value in properties.items())
        format_ = self.java("-Xmx256M", "kafka.tools.StorageTool", "format", "--standalone", "-t", "MkU3OEVBNTcwNTJENDM2Qg", "-c", path)
        processes.client(format_, os.path.join(self.directory, "format.log"))
        return self.java(self.JVM, "kafka.Kafka", path), None

    def admin(self, ask):
        """Calls `ask` with confluent_kafka.admin and a client of it, and waits for what was asked."""
        wheel = os.path.join(os.path.dirname(self.files["client"]), "wheel")
        if wheel not in sys.path:
            sys.path.insert(0, wheel)
        from confluent_kafka import KafkaException, admin

        client = admin.AdminClient({"bootstrap.servers": self.address(), "log_level": 3})
        try:
            for done in ask(admin, client).values():
                done.result(60)
        except KafkaException as error:
            raise RuntimeError(str(error)) from error

    def create(self, topic, connections):
        self.admin(lambda admin, client: client.create_topics([admin.NewTopic(topic, connections, 1)]))

    def delete(self, topic, connections):
        self.admin(lambda _, client: client.delete_topics([topic]))

    def librdkafka(self, raw, *arguments):
        text, cpu = processes.client([self.files["client"], *map(str, arguments)], raw)
        return processes.last_json(text), cpu

    def produce(self, client, topic, connections, records, size, durability, raw):
        if client == "librdkafka":
            return self.librdkafka(raw, "produce", self.address(), topic, connections, connections, records, size)
        tool = ["org.apache.kafka.tools.ProducerPerformance", "--bootstrap-server", self.address(), "--topic", topic]
        shape = ["--num-records", str(records), "--record-size", str(size), "--throughput", "-1"]
        text, cpu = processes.client(self.java("-Xmx512M", *tool, *shape, "--command-property", *self.PRODUCER.split()), raw)
        sent, rate = re.findall(r"^(\d+) records sent, ([\d.]+) records/sec", text, re.MULTILINE)[-1]
        return {"records": int(sent), "seconds": int(sent) / float(rate)}, cpu

    def consume(self, client, topic, connections, records, size, raw):
        if client == "librdkafka":
            return self.librdkafka(raw, "consume", self.address(), topic, connections, connections, records)
        tool = ["org.apache.kafka.tools.ConsumerPerformance", "--bootstrap-server", self.address(), "--topic", topic]
        text, cpu = processes.client(self.java("-Xmx512M", *tool, "--num-records", str(records), "--hide-header"), raw)
        fields = [line for line in text.splitlines() if line.count(",") == 9][-1].split(", ")
        # The last figure leaves the joining of the group out.
        return {"records": int(fields[4]), "seconds": int(fields[4]) / float(fields[9])}, cpu

    def latency(self, topic, rate, seconds, size, raw):
        self.create(topic, 1)
        return self.librdkafka(raw, "latency", self.address(), topic, rate, seconds, size)


class Nats(Peer):
    name = "nats"
    greeting = (b"", lambda reply: reply.startswith(b"INFO "))

    def settings(self, durability):
        return "file storage, sync_interval: " + {FSYNC: "always", NONE: "2m (the default)"}[durability]

    def prepare(self, durability):
        path = os.path.join(self.directory, "nats.conf")
        sync = {FSYNC: "always", NONE: "2m"}[durability]
        with open(path, "w", encoding="utf-8") as out:
            out.write(f"listen: {self.address()}\n")
            out.write(f'jetstream {{ store_dir: "{self.directory}/data", max_mem_store: 64MB, max_file_store: 60GB, sync_interval: {sync} }}\n')
        return [os.path.join(self.files["directory"], "nats-server"), "-c", path], None

    def cli(self, raw, *arguments):
        env = {"NATS_URL": f"nats://{self.address()}", "XDG_CONFIG_HOME": self.directory, "HOME": self.directory}
        return processes.client([os.path.join(self.files["directory"], "nats"), *map(str, arguments)], raw, env)

    def rate(self, text, records):
        found = re.findall(r"stats: ([\d,]+) msgs/sec", text)
        return {"records": records, "seconds": records / float(found[-1].replace(",", ""))}

    def produce(self, client, topic, connections, records, size, durability, raw):
        # Of its ways to publish, the fastest for each durability on this machine: in batches.
        way = {FSYNC: "atomic", NONE: "fast"}[durability]
        stream = ["--create", "--stream", topic, "--maxbytes", "50GB", "--no-progress"]
        shape = ["--clients", connections, "--msgs", records, "--size", f"{size}B"]
        text, cpu = self.cli(raw, "bench", "js", "pub", way, topic, *stream, *shape)
        return self.rate(text, records), cpu

    def consume(self, client, topic, connections, records, size, raw):
        # One reads alone; several share a consumer, each record goes to one of them.
        way = ["ordered"] if connections == 1 else ["consume", "--acks", "none"]
        shape = ["--clients", connections, "--msgs", records, "--size", f"{size}B", "--stream", topic, "--no-progress"]
        text, cpu = self.cli(raw, "bench", "js", *way, *shape)
        return self.rate(text, records), cpu

    def latency(self, topic, rate, seconds, size, raw):
        command = [self.files["client"], "nats-latency", self.address(), topic, str(rate), str(seconds), str(size)]
        text, cpu = processes.client(command, raw)
        return processes.last_json(text), cpu

    def delete(self, topic, connections):
        self.cli(os.path.join(self.directory, "delete.log"), "stream", "rm", "-f", topic)


class Redis(Peer):
    name = "redis"
    greeting = (b"PING\r\n", lambda reply: reply == b"+PONG\r\n")
    # Requests in flight on a connection: the fastest on this machine at 100 bytes, and about as many bytes for larger ones.
    PIPELINE = {100: 512, 1024: 128, 10240: 16}

    def settings(self, durability):
        policy = {FSYNC: "always", NONE: "no"}[durability]
        return f"--appendonly yes --appendfsync {policy} --auto-aof-rewrite-percentage 0"

    def prepare(self, durability):
        data = os.path.join(self.directory, "data")
        os.makedirs(data)
        server = [os.path.join(self.files["programs"], "redis-server"), "--port", str(self.port), "--bind", "127.0.0.1", "--dir", data]
        return [*server, "--save", "", *self.settings(durability).split()], self.files["env"]

    def tool(self, program, raw, *arguments):
        command = [os.path.join(self.files["programs"], program), "-p", str(self.port), *map(str, arguments)]
        return processes.client(command, raw, self.files["env"])

    def keys(self, topic, connections):
        return [f"{topic}:{i:012d}" for i in range(connections)]

    def produce(self, client, topic, connections, records, size, durability, raw):
        shape = ["-c", connections, "-P", self.PIPELINE[size], "-n", records, "-r", connections, "--csv"]
        text, cpu = self.tool("redis-benchmark", raw, *shape, "XADD", f"{topic}:__rand_int__", "*", "v", "x" * size)
        rate = float(text.splitlines()[-1].split('","')[1])
        return {"records": records, "seconds": records / rate}, cpu

    def consume(self, client, topic, connections, records, size, raw):
        keys = ",".join(self.keys(topic, connections))
        text, cpu = processes.client([self.files["client"], "redis-consume", self.address(), keys, str(records)], raw)
        return processes.last_json(text), cpu

    def latency(self, topic, rate, seconds, size, raw):
        command = [self.files["client"], "redis-latency", self.address(), topic, str(rate), str(seconds), str(size)]
        text, cpu = processes.client(command, raw)
        return processes.last_json(text), cpu

    def delete(self, topic, connections):
        self.tool("redis-cli", os.path.join(self.directory, "delete.log"), "DEL", *self.keys(topic, connections))


ALL = [MiniBroker, Kafka, Nats, Redis]

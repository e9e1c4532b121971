"""Brings what is compared to target/compare, from the package registries; nothing is installed into the system."""

import glob
import json
import os
import shutil
import subprocess

KAFKA = "4.3.1"
NATS_SERVER = "v2.15.2"
NATS_CLI = "v0.5.0"
LIBRDKAFKA_WHEEL = "confluent-kafka==2.16.1"
# Of the distribution, with what redis-server needs and a small system may lack.
REDIS_PACKAGES = ["redis-tools", "libjemalloc2", "liblzf1", "libatomic1"]


class Unavailable(Exception):
    """A peer that cannot be had, with the reason."""


def peer(name, root, target):
    """What the peer's class needs to know of its files."""
    try:
        return {"mini-broker": mini_broker, "kafka": kafka, "nats": nats, "redis": redis}[name](root, target)
    except (OSError, subprocess.CalledProcessError, IndexError) as error:
        output = getattr(error, "stderr", None) or getattr(error, "output", None) or ""
        raise Unavailable(f"{error} {output[-500:]}".strip()) from error


def call(command, directory=None, **env):
    return subprocess.run(
        command, cwd=directory, env={**os.environ, **env}, check=True, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ).stdout


def need(*tools):
    for tool in tools:
        if shutil.which(tool) is None:
            raise Unavailable(f"{tool} is not on this machine")


def mini_broker(root, target):
    output = call(["cargo", "bench", "--no-run", "--bench", "load", "--message-format=json"], root)
    built = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    programs = {b["target"]["name"]: b["executable"] for b in built if b.get("executable")}
    if "mini-broker" not in programs:
        programs["mini-broker"] = os.path.join(os.environ.get("CARGO_TARGET_DIR", os.path.join(root, "target")), "release", "mini-broker")
    version = call([programs["mini-broker"], "--version"]).strip()
    commit = call(["git", "describe", "--always", "--dirty"], root).strip()
    return {"broker": programs["mini-broker"], "load": programs["load"], "version": f"{version} ({commit})"}


def kafka(root, target):
    need("java", "mvn", "gcc")
    directory = os.path.join(target, "kafka")
    libs = os.path.join(directory, f"libs-{KAFKA}")
    if not glob.glob(os.path.join(libs, "kafka-tools-*.jar")):
        os.makedirs(directory, exist_ok=True)
        dependency = "<dependency><groupId>org.apache.kafka</groupId><artifactId>{}</artifactId><version>{}</version></dependency>"
        with open(os.path.join(directory, "pom.xml"), "w", encoding="utf-8") as pom:
            pom.write(
                '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
                "<groupId>compare</groupId><artifactId>kafka</artifactId><version>1</version><dependencies>"
                + "".join(dependency.format(artifact, KAFKA) for artifact in ("kafka_2.13", "kafka-tools"))
                + "</dependencies></project>\n"
            )
        copy = ["mvn", "-q", "-B", "-ntp", "dependency:copy-dependencies", "-DincludeScope=runtime"]
        call([*copy, f"-DoutputDirectory={libs}"], directory)
    client, librdkafka = librdkafka_client(root, target)
    java = call(["java", "--version"]).splitlines()[0]
    return {"libs": libs, "client": client, "version": f"Apache Kafka {KAFKA} on {java}; librdkafka of {librdkafka}"}


def librdkafka_client(root, target):
    """The newest librdkafka is in a wheel, its header in the distribution's package (its interface is stable)."""
    directory = os.path.join(target, "librdkafka")
    source = os.path.join(root, "benches", "compare", "clients", "kafka.c")
    client = os.path.join(directory, "kafka")
    if not glob.glob(os.path.join(directory, "wheel", "*.libs", "librdkafka-*.so*")):
        os.makedirs(directory, exist_ok=True)
        need("pip3", "apt-get", "dpkg-deb")
        call(["pip3", "install", "-q", "--no-deps", "--target", os.path.join(directory, "wheel"), LIBRDKAFKA_WHEEL])
        unpack_debian(["librdkafka-dev"], directory)
    library = glob.glob(os.path.join(directory, "wheel", "*.libs", "librdkafka-*.so*"))[0]
    include = os.path.join(directory, "root", "usr", "include", "librdkafka")
    compile_ = ["gcc", "-O2", "-Wall", "-Wextra", "-o", client, source, "-I", include, library]
    call([*compile_, f"-Wl,-rpath,{os.path.dirname(library)}", "-lpthread"])
    return client, LIBRDKAFKA_WHEEL


def unpack_debian(packages, directory):
    """Downloads packages and unpacks them below `directory`/root, without installing them."""
    debs = os.path.join(directory, "debs")
    os.makedirs(debs, exist_ok=True)
    try:
        call(["apt-get", "download", *packages], debs)
    except subprocess.CalledProcessError:
        call(["apt-get", "update"])
        call(["apt-get", "download", *packages], debs)
    for deb in glob.glob(os.path.join(debs, "*.deb")):
        call(["dpkg-deb", "-x", deb, os.path.join(directory, "root")])


def streams_client(root, target):
    need("go")
    client = os.path.join(target, "streams")
    call(["go", "build", "-o", client, "."], os.path.join(root, "benches", "compare", "clients", "streams"))
    return client


def nats(root, target):
    need("go")
    directory = os.path.join(target, "nats")
    for module, version, program in [
        ("github.com/nats-io/nats-server/v2", NATS_SERVER, "nats-server"),
        ("github.com/nats-io/natscli/nats", NATS_CLI, "nats"),
    ]:
        if not os.path.exists(os.path.join(directory, program)):
            call(["go", "install", f"{module}@{version}"], None, GOBIN=directory)
    version = f"nats-server {NATS_SERVER}, nats CLI {NATS_CLI}, {call(['go', 'version']).strip()}"
    return {"directory": directory, "client": streams_client(root, target), "version": version}


def redis(root, target):
    need("apt-get", "dpkg-deb")
    directory = os.path.join(target, "redis")
    programs = os.path.join(directory, "root", "usr", "bin")
    server = os.path.join(programs, "redis-server")
    if not os.path.lexists(server):
        unpack_debian(REDIS_PACKAGES, directory)
        # One program that goes by the name it is called with; the package redis-server has only this link.
        os.symlink("redis-check-rdb", server)
    libraries = glob.glob(os.path.join(directory, "root", "usr", "lib", "*-linux-gnu"))[0]
    env = {"LD_LIBRARY_PATH": libraries}
    version = call([server, "--version"], None, **env).strip()
    return {"programs": programs, "env": env, "client": streams_client(root, target), "version": version}

"""The host of the tests: a network and an /etc of its own, joined to the world and to nothing else.

The host prints one line that describes its servers. Host and world end when the standard input
of the host ends.
"""

import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile

import addresses
import open_proxy
import servers
from arrival_log import Journal

HOSTS = "127.0.0.1 localhost\n::1 localhost ip6-localhost\n{private} intranet.named.test\n"
NAMES = ["good", "wild", "evil", "named", "client", "mixed", "rebind"]


def run(*words, **options):
    subprocess.run(words, check=True, **options)


def certify(directory):
    """An authority of this world, and a certificate for every name in it."""
    key = [
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-days",
        "2",
        "-batch",
    ]
    quiet = {"stderr": subprocess.DEVNULL}
    authority, authority_key = directory / "authority.pem", directory / "authority.key"
    run(
        "openssl",
        "req",
        "-x509",
        *key,
        "-subj",
        "/CN=authority of the tests",
        "-addext",
        "keyUsage=critical,keyCertSign",
        "-keyout",
        authority_key,
        "-out",
        authority,
        **quiet,
    )
    names = ",".join(f"DNS:{name}.test,DNS:*.{name}.test" for name in NAMES)
    run(
        "openssl",
        "req",
        "-x509",
        *key,
        "-subj",
        "/CN=world",
        "-CA",
        authority,
        "-CAkey",
        authority_key,
        "-addext",
        "basicConstraints=critical,CA:FALSE",
        "-addext",
        f"subjectAltName={names}",
        "-keyout",
        directory / "world.key",
        "-out",
        directory / "world.pem",
        **quiet,
    )


def name_it(directory):
    """Mounts the /etc/hosts and /etc/resolv.conf of this world in this mount namespace."""
    files = {
        "hosts": HOSTS.format(private=addresses.PRIVATE[0]),
        "resolv.conf": f"nameserver {addresses.RESOLVER}\n",
    }
    for name, content in files.items():
        file = directory / name
        file.write_text(content)
        run("mount", "--bind", file, os.path.realpath(f"/etc/{name}"))


def link(world, has_ipv6):
    lines = [
        "link set lo up",
        f"link add host type veth peer name world netns {world}",
        f"addr add {addresses.HOST}/24 dev host",
        f"addr add {addresses.HOST6}/64 dev host nodad",
        "link set host up",
        "route add default dev host",
        f"route add unreachable {addresses.VACANT}",
        "-6 route add default dev host",
    ]
    lines = [line for line in lines if has_ipv6 or not ("nodad" in line or line.startswith("-6"))]
    for line in lines:
        run("ip", *line.split())


def listen_on_unix_sockets(path, journal):
    for address in (str(path), addresses.ABSTRACT_SOCKET):
        server = socket.socket(socket.AF_UNIX)
        server.bind(address)
        server.listen(64)
        servers.in_a_thread(serve_unix, server, journal)
    path.chmod(0o666)


def serve_unix(server, journal):
    while True:
        connection, _ = server.accept()
        servers.in_a_thread(servers.attended, answer, connection, "host", journal)


def answer(connection, service, journal):
    servers.answer_requests(connection, lambda data: journal.record(service, 0, data))


def main():
    directory = pathlib.Path(tempfile.mkdtemp(prefix="ringfence-world-"))
    directory.chmod(0o755)
    try:
        (directory / "files").mkdir()
        certify(directory)
        name_it(directory)
        has_ipv6 = pathlib.Path("/proc/net/if_inet6").exists()
        source = pathlib.Path(__file__).parent
        world = subprocess.Popen(
            ["unshare", "--net", sys.executable, "-B", source / "servers.py", directory],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert world.stdout.readline() == b"here\n"
        link(world.pid, has_ipv6)
        world.stdin.write(b"linked\n")
        world.stdin.flush()
        assert world.stdout.readline() == b"ready\n"

        journal = Journal(directory / "arrivals")
        serve = lambda connection, service, port: servers.answer_requests(
            connection, lambda data: journal.record("host", port, data)
        )
        servers.accept_all(80, serve)
        listen_on_unix_sockets(directory / "host.sock", journal)
        open_proxy.listen(addresses.CARELESS_PROXY)
        print(json.dumps({"directory": str(directory), "ipv6": has_ipv6}), flush=True)
        sys.stdin.read()
        world.stdin.close()
        world.wait()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()

"""What code in a container sees of its own confinement, as JSON."""

import json
import os
import socket
import subprocess
import sys


def status():
    lines = open("/proc/self/status").read().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def effective_user_of_su():
    """Returns the user id with which a set-user-id program of root ran.

    The program gets no password and ends, and its status is read then.
    """
    program = subprocess.Popen(
        ["/usr/bin/su"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.waitid(os.P_PID, program.pid, os.WEXITED | os.WNOWAIT)
    lines = open(f"/proc/{program.pid}/status").read().splitlines()
    program.wait()
    return next(int(line.split()[2]) for line in lines if line.startswith("Uid:"))


def error_of_writing(path):
    try:
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY))
        return 0
    except OSError as error:
        return error.errno


def gateway():
    rows = [line.split() for line in open("/proc/net/route").read().splitlines()[1:]]
    found = [row[2] for row in rows if row[1] == "00000000"]
    return socket.inet_ntoa(bytes.fromhex(found[0])[::-1]) if found else None


def can_connect(address, port):
    try:
        socket.create_connection((address, port), 5).close()
        return True
    except OSError:
        return False


def can_resolve(name):
    try:
        socket.getaddrinfo(name, 80)
        return True
    except OSError:
        return False


def limit(*names):
    for name in names:
        try:
            return open("/sys/fs/cgroup/" + name).read().split()
        except OSError:
            pass
    return None


if __name__ == "__main__":
    port, addresses = int(sys.argv[1]), sys.argv[2:]
    own = gateway()
    print(
        json.dumps(
            {
                "status": status(),
                "su": effective_user_of_su(),
                "write": error_of_writing("/usr/planted"),
                "interfaces": sorted(os.listdir("/sys/class/net")),
                "gateway": own,
                "reached": [
                    address
                    for address in [own, *addresses]
                    if address and can_connect(address, port)
                ],
                "resolved": can_resolve("example.org"),
                "memory": limit("memory/memory.limit_in_bytes", "memory.max"),
                "cpus": limit("cpu,cpuacct/cpu.cfs_quota_us", "cpu/cpu.cfs_quota_us", "cpu.max"),
                "processes": limit("pids/pids.max", "pids.max"),
            }
        )
    )

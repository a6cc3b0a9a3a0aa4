"""Fills a directory with the files that clients fetch from a server.

`@ORIGIN@` in a file becomes the address of the server.
"""

import base64
import hashlib
import io
import json
import pathlib
import subprocess
import sys
import tarfile
import zipfile

WORDS = "from the world"


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())


def archive(files):
    """A gzipped tarball."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text.encode()))
    return buffer.getvalue()


def git(root):
    """A repository for the protocol that needs nothing but files."""
    work = root / "work"
    author = ["-c", "user.name=Test", "-c", "user.email=test@example.org"]
    write(work / "hello", WORDS)
    for words in (
        ["init", "--quiet"],
        ["add", "."],
        [*author, "commit", "--quiet", "--message", "hello"],
    ):
        subprocess.run(["git", "-C", work, *words], check=True)
    bare = root / "hello.git"
    subprocess.run(["git", "clone", "--quiet", "--bare", work, bare], check=True)
    subprocess.run(["git", "-C", bare, "update-server-info"], check=True)


def pip(root):
    """A simple index, PEP 503, with one wheel."""
    information = "hello-1.0.dist-info"
    files = {
        "hello.py": f"print({WORDS!r})\n",
        f"{information}/METADATA": "Metadata-Version: 2.1\nName: hello\nVersion: 1.0\n",
        f"{information}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\n"
        "Root-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{information}/RECORD"] = "".join(
        f"{name},,\n" for name in [*files, f"{information}/RECORD"]
    )
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as wheel:
        for name, text in files.items():
            wheel.writestr(name, text)
    write(root / "simple/hello/hello-1.0-py3-none-any.whl", buffer.getvalue())
    write(
        root / "simple/hello/index.html",
        '<a href="hello-1.0-py3-none-any.whl">hello-1.0-py3-none-any.whl</a>',
    )


def npm(root):
    package = {"name": "hello", "version": "1.0.0", "main": "index.js"}
    tarball = archive(
        {
            "package/package.json": json.dumps(package),
            "package/index.js": f"console.log({WORDS!r})\n",
        }
    )
    integrity = "sha512-" + base64.b64encode(hashlib.sha512(tarball).digest()).decode()
    distribution = {"tarball": "@ORIGIN@/npm/-/hello-1.0.0.tgz", "integrity": integrity}
    versions = {"1.0.0": {**package, "dist": distribution}}
    write(root / "-/hello-1.0.0.tgz", tarball)
    write(
        root / "hello",
        json.dumps({"name": "hello", "dist-tags": {"latest": "1.0.0"}, "versions": versions}),
    )


def cargo(root):
    """A sparse index, RFC 2789, with one crate."""
    manifest = '[package]\nname = "hello"\nversion = "1.0.0"\nedition = "2021"\n'
    crate = archive(
        {"hello-1.0.0/Cargo.toml": manifest, "hello-1.0.0/src/lib.rs": f"//! {WORDS}\n"}
    )
    entry = {
        "name": "hello",
        "vers": "1.0.0",
        "deps": [],
        "features": {},
        "yanked": False,
        "cksum": hashlib.sha256(crate).hexdigest(),
    }
    write(root / "config.json", json.dumps({"dl": "@ORIGIN@/cargo/crates/{crate}-{version}.crate"}))
    write(root / "he/ll/hello", json.dumps(entry) + "\n")
    write(root / "crates/hello-1.0.0.crate", crate)


def apt(root):
    """A repository of one package, which an archive of archives is: ar(5)."""
    control = (
        "Package: hello\nVersion: 1.0\nArchitecture: all\nMaintainer: Test <test@example.org>\n"
    )
    control += "Description: a test\n"
    members = {
        "debian-binary": b"2.0\n",
        "control.tar.gz": archive({"./control": control}),
        "data.tar.gz": archive({"./usr/share/hello": WORDS}),
    }
    package = b"!<arch>\n"
    for name, content in members.items():
        package += f"{name:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(content):<10}`\n".encode()
        package += content + b"\n" * (len(content) % 2)
    write(root / "hello_1.0_all.deb", package)
    checksum = hashlib.sha256(package).hexdigest()
    write(
        root / "Packages",
        f"{control}Filename: ./hello_1.0_all.deb\nSize: {len(package)}\nSHA256: {checksum}\n",
    )


if __name__ == "__main__":
    directory = pathlib.Path(sys.argv[1])
    write(directory / "hello", WORDS)
    for name, fill in {"git": git, "pip": pip, "npm": npm, "cargo": cargo, "apt": apt}.items():
        fill(directory / name)

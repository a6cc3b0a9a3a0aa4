"""Takes a number of shared resources, and prints how many of them it got.

Usage: `shares.py WHAT COUNT [DIRECTORY]`.
"""

import ctypes
import mmap
import os
import signal
import struct
import sys

libc = ctypes.CDLL(None, use_errno=True)


def checked(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def access_list(length):
    """A list of `length` bytes at most, of entries for one user alone (linux/posix_acl_xattr.h)."""
    entries = [(1, 0xFFFFFFFF)] + [(2, os.getuid())] * ((length - 4) // 8 - 4)
    entries += [(kind, 0xFFFFFFFF) for kind in (4, 0x10, 0x20)]
    return struct.pack("<I", 2) + b"".join(
        struct.pack("<HHI", kind, 7, user) for kind, user in entries
    )


def files(number, directory):
    open(f"{directory}/file{number}", "x").close()


def links(number, directory):
    if number == 0:
        open(f"{directory}/linked", "x").close()
    os.link(f"{directory}/linked", f"{directory}/link{number}")


def directories(number, directory):
    os.mkdir(f"{directory}/directory{number}")


def names(number, directory):
    os.symlink("x" * 100, f"{directory}/{number:0>250}")


def attributes(number, directory):
    os.setxattr(directory, f"user.{number}", b"x" * 4000)


def long_attributes(number, directory):
    os.setxattr(directory, f"user.{number}", b"x" * 60000)


def access_lists(number, directory):
    path = f"{directory}/listed{number}"
    os.mkdir(path)
    os.setxattr(path, "system.posix_acl_access", access_list(60000))
    os.setxattr(path, "system.posix_acl_default", access_list(60000))


def inotify_instances(_number, _directory):
    checked(libc.inotify_init1(os.O_CLOEXEC))


def signals(_number, _directory):
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGRTMIN])
    checked(libc.sigqueue(os.getpid(), int(signal.SIGRTMIN), ctypes.c_void_p(0)))


def huge_pages(_number, _directory):
    MAP_HUGETLB = 0x40000
    mmap.mmap(-1, 1 << 21, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_HUGETLB)


def huge_files(_number, _directory):
    MFD_HUGETLB = 4
    file = libc.memfd_create(b"x", MFD_HUGETLB)
    checked(file)
    os.ftruncate(file, 1 << 21)
    mmap.mmap(file, 1 << 21)


def huge_segments(_number, _directory):
    IPC_PRIVATE, SHM_HUGETLB = 0, 0o4000
    segment = libc.shmget(IPC_PRIVATE, ctypes.c_size_t(1 << 21), 0o600 | SHM_HUGETLB)
    checked(segment)
    checked(libc.shmctl(segment, 0, None))


what, count, directory = (
    sys.argv[1],
    int(sys.argv[2]),
    os.path.expandvars(sys.argv[3]) if len(sys.argv) > 3 else None,
)
got, errno = 0, 0
if directory:
    directory = f"{directory}/shares-{os.getpid()}"
try:
    if directory:
        os.mkdir(directory)
    for got in range(count):
        globals()[what](got, directory)
    got = count
except OSError as error:
    errno = error.errno
finally:
    os.closerange(3, 100)
    if directory:
        os.system(f"rm -rf '{directory}'")
print(got, errno)

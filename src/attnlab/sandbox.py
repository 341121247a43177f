"""A sandbox of the operating system for code from others, entered by a process before it imports anything large.

On Linux a process gives up its rights by itself and needs no privileges to do so: Landlock confines reading to Python's own
files and one folder and forbids writing, a seccomp filter refuses system calls that start processes and threads, open
sockets, send signals or change files by name, and all capabilities are dropped. On macOS the command is wrapped in
`sandbox-exec`. Elsewhere there is no sandbox, and `missing` says so.

Filtered calls fail with EPERM, so that a mistake is an ordinary error. Neither Landlock nor the filter hides the existence
and size of a file whose path is known.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import platform
import signal
import struct
import sys
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

_Numbers = tuple[int, ...]
_Table = tuple[tuple[_Numbers, int, _Numbers], ...]  # calls, the place of an argument, and its values

# Refused system calls by number, for x86-64 and for arm64, where some do not exist.
_REFUSED = {
    "clone, fork, vfork, execve, execveat": ("56 57 58 59 322", "220 221 281"),
    "kill, tkill, tgkill, rt_sigqueueinfo, pidfd_send_signal": ("62 129 200 234 297 424", "129 130 131 138 240 424"),
    "ptrace, memory and descriptors of other processes": ("101 310 311 312 434 438 440", "117 270 271 272 434 438 440"),
    "priorities, cores and pages of other processes": (
        "141 142 144 203 251 314 256 279",
        "140 118 119 122 30 274 238 239",
    ),
    "socket, socketpair, io_uring_setup": ("41 53 425", "198 199 425"),
    "chmod and chown, which Landlock allows": ("90 91 92 93 94 260 268 452", "52 53 54 55 452"),
    "extended attributes": ("188 189 190 197 198 199 463 466 469", "5 6 7 14 15 16 463 466 469"),
    "file times, truncate, inotify, fanotify": ("132 235 261 280 76 253 294 300", "88 45 26 262"),
    "shared memory and semaphores of System V": ("29 30 31 67 64 65 66 220", "194 195 196 197 190 191 192 193"),
    "message queues and keys": ("68 69 70 71 240 248 249 250", "186 187 188 189 180 217 218 219"),
    "unshare, setns, perf_event_open, bpf, userfaultfd": ("272 308 298 321 323", "97 268 241 280 282"),
}
# Calls that are refused for some values of an argument: prctl may not change what happens when the parent ends, and fcntl
# may not direct signals.
_REFUSED_FOR: _Table = (((157, 167), 0, (1,)), ((72, 25), 1, (8, 10, 15, 1026)))
# Calls that are allowed for some values of an argument: prlimit64 for this process, ioctl for the flags and the size of what
# can be read, and whether it is a terminal. Others change files that are open for reading.
_ALLOWED_FOR: _Table = (((302, 261), 0, (0,)), ((16, 29), 1, (0x5450, 0x5451, 0x541B, 0x5421, 0x5401)))
_OPEN: tuple[tuple[_Numbers, int], ...] = (
    ((2,), 1),
    ((257, 56), 2),
)  # open, which arm64 lacks, and openat, with the place of their flags
_ABSENT = (435, 437)  # clone3 and openat2: their flags lie in memory, and the C library does without them
_ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}  # column above, and audit number

_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06  # instructions of classic BPF

_WRITE_FILE, _READ_FILE, _READ_DIRECTORY = 1 << 1, 1 << 2, 1 << 3
_RIGHTS = ((1, 13), (2, 14), (3, 15), (5, 16))  # versions of Landlock, and how many kinds of access to files they know
_SYSTEM = (
    *("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/etc/ld.so.cache", "/dev/null", "/dev/urandom"),
    *("/proc/self", "/proc/cpuinfo", "/proc/meminfo", "/sys/devices/system/cpu"),
)


def missing() -> str:
    """Why there is no sandbox on this machine; empty if there is one."""
    if sys.platform == "darwin":
        return "" if Path("/usr/bin/sandbox-exec").exists() else "macOS without sandbox-exec"
    if sys.platform != "linux" or platform.machine() not in _ARCHITECTURES:
        return f"{platform.system()} on {platform.machine()} is not supported"
    return "" if _landlock_version() > 0 else "this kernel has no Landlock (Linux 5.13 or later, lsm=landlock)"


def readable() -> list[str]:
    """What confined code may read beside its own folder: Python, its packages, attnlab and system libraries."""
    packages = (find_spec(name) for name in ("torch", "numpy", "msgspec"))
    places = {Path(spec.origin).parents[1] for spec in packages if spec and spec.origin}
    # Python may be installed in a home folder.
    libraries = (Path(prefix) / name for prefix in (sys.prefix, sys.base_prefix) for name in ("lib", "lib64"))
    return [*map(str, {*libraries, Path(__file__).parent, *places}), *_SYSTEM]


def wrapped(command: list[str], folder: Path) -> list[str]:
    """The command that starts a process to be confined: on macOS, in its sandbox, where it may read `folder`."""
    if sys.platform != "darwin":
        return command
    prefixes = [path for path in (sys.prefix, sys.base_prefix) if not Path.home().is_relative_to(path)]
    places = [json.dumps(os.path.realpath(path)) for path in (*readable(), *prefixes, folder)]
    programs = [json.dumps(path) for path in {command[0], os.path.realpath(command[0])}]
    rules = (
        "(version 1) (allow default) (deny network*) (deny process-fork) (deny process-exec)",
        "(deny signal) (allow signal (target self)) (deny appleevent-send) (deny lsopen) (deny mach-lookup)",
        f"(allow process-exec {' '.join(f'(literal {program})' for program in programs)})",
        f'(deny file-write*) (allow file-write* (literal "{os.devnull}"))',
        '(deny file-read* (subpath "/Users") (subpath "/Volumes") (subpath "/private"))',
        f"(allow file-read* {' '.join(f'(subpath {place})' for place in places)})",
    )
    return ["/usr/bin/sandbox-exec", "-p", "\n".join(rules), *command]


def enter(folder: Path) -> None:
    """Confine this process, which must have one thread, for good; it may read `folder`."""
    tempfile.tempdir = str(folder)  # libraries ask for its name when they are imported; nothing can be written there
    if sys.platform == "darwin":
        return
    if len(list(Path("/proc/self/task").iterdir())) != 1:
        raise RuntimeError("a sandbox must be entered before any thread is started")
    parent = os.getppid()
    _call("prctl", 1, signal.SIGKILL)  # end with the parent
    if os.getppid() != parent:
        os._exit(1)
    _call("prctl", 38, 1, 0, 0, 0)  # no new privileges
    header, nothing = struct.pack("Ii", 0x20080522, 0), bytes(24)
    _call("capset", header, nothing)
    _restrict_files([*readable(), str(folder)])
    _filter_calls()


def _call(name: str, *arguments: object) -> int:
    """Call a function of the C library; its error is raised."""
    result = int(getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments))
    if result < 0:
        raise OSError(ctypes.get_errno(), f"{name}: {os.strerror(ctypes.get_errno())}")
    return result


def _landlock_version() -> int:
    try:
        return _call("syscall", 444, None, 0, 1)
    except OSError:
        return 0


def _restrict_files(paths: list[str]) -> None:
    """Forbid all access to files but reading below some paths, and where Landlock knows them, TCP and signals."""
    version = _landlock_version()
    rights = max(count for least, count in _RIGHTS if least <= version)
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    ruleset = _call("syscall", 444, struct.pack("QQQ", (1 << rights) - 1, 3, 3)[:size], size, 0)
    for path in filter(os.path.exists, paths):
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
        allowed = _READ_FILE | _READ_DIRECTORY * Path(path).is_dir() | _WRITE_FILE * (path == os.devnull)
        _call("syscall", 445, ruleset, 1, struct.pack("=Qi", allowed, place), 0)
        os.close(place)
    _call("syscall", 446, ruleset, 0)
    os.close(ruleset)


def _filter_calls() -> None:
    """Have the kernel refuse system calls, for this process and without return."""
    column, architecture = _ARCHITECTURES[platform.machine()]
    refuse, absent = _ERRNO | errno.EPERM, _ERRNO | errno.ENOSYS

    def step(code: int, value: int, then: int = 0, otherwise: int = 0) -> bytes:
        return struct.pack("HBBI", code, then, otherwise, value)

    def test(value: int, answer: int, code: int = _EQUAL) -> bytes:
        return step(code, value, 0, 1) + step(_RETURN, answer)

    def low_half(argument: int) -> bytes:
        return step(_LOAD, 16 + 8 * argument)

    def only(calls: Sequence[int], inner: bytes) -> bytes:
        return step(_EQUAL, calls[column], 0, len(inner) // 8) + inner if column < len(calls) else b""

    number = step(_LOAD, 0)
    program = step(_LOAD, 4) + step(_EQUAL, architecture, 1, 0) + step(_RETURN, _KILL)
    program += number + test(0x40000000, _KILL, _AT_LEAST)  # the x32 calls of x86-64
    for columns in _REFUSED.values():
        program += b"".join(test(int(call), refuse) for call in columns[column].split())
    program += b"".join(test(call, absent) for call in _ABSENT)
    for calls, argument, values in _REFUSED_FOR:
        program += only(calls, low_half(argument) + b"".join(test(value, refuse) for value in values) + number)
    for calls, argument, values in _ALLOWED_FOR:
        allowed = b"".join(test(value, _ALLOW) for value in values)
        program += only(calls, low_half(argument) + allowed + step(_RETURN, refuse))
    for calls, argument in _OPEN if _landlock_version() < 3 else ():  # which lets files be emptied that may be read
        program += only(calls, low_half(argument) + test(os.O_TRUNC, refuse, _ANY_BIT) + number)
    program += step(_RETURN, _ALLOW)
    buffer = ctypes.create_string_buffer(program, len(program))
    description = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(buffer))
    _call("prctl", 22, 2, description, 0, 0)  # PR_SET_SECCOMP, SECCOMP_MODE_FILTER

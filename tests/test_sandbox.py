"""The sandbox: harmless attacks on canaries, each of which must fail, and limits that code cannot lift.

An attack that succeeds damages nothing but a canary. Without a sandbox they do succeed, which a test checks.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from attnlab import sandbox
from attnlab.supervisor import Child, ChildError, Limits, MemoryExceeded, Raised

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="macOS confines in another way"),
    pytest.mark.skipif(bool(sandbox.missing()), reason=f"no sandbox here: {sandbox.missing()}"),
]
MEMORY = 2**28
SYSCALL = "__import__('ctypes').CDLL(None, use_errno=True).syscall"
X86 = os.uname().machine == "x86_64"
EXCHANGE = "-100, f'{home}/secret'.encode(), -100, f'{home}/other'.encode(), 2"
DESCRIPTORS = "(int(n) for n in os.listdir('/proc/self/fd') if os.path.exists(f'/proc/self/fd/{n}'))"

# Expressions over `home`, a folder with `secret`; `own`, the private folder; `other`, the id of a process of this user;
# `port`, on which this machine listens; `canary`, a file that the parent has opened. A value other than None is a success.
ATTACKS = {
    "write a file": "open(f'{home}/new', 'w')",
    "write its own folder": "open(f'{own}/new', 'w')",
    "write shared memory": "os.unlink(__import__('tempfile').mkstemp(dir='/dev/shm')[1]) or 1",
    "overwrite": "open(f'{home}/secret', 'r+')",
    "append": "open(f'{home}/secret', 'a')",
    "truncate": "os.truncate(f'{home}/secret', 0) or 1",
    "remove": "os.remove(f'{home}/secret') or 1",
    "rename": "os.rename(f'{home}/secret', f'{home}/moved') or 1",
    "exchange": f"{SYSCALL}({316 if X86 else 276}, {EXCHANGE}) == 0 or None",
    "make a folder": "os.mkdir(f'{home}/folder') or 1",
    "remove a folder": "os.rmdir(f'{home}/empty') or 1",
    "link": "os.link(f'{home}/secret', f'{home}/linked') or 1",
    "link into its own folder": "os.link(f'{home}/secret', f'{own}/linked') or 1",
    "symbolic link": "os.symlink(f'{home}/secret', f'{own}/pointer') or 1",
    "make a pipe": "os.mkfifo(f'{home}/pipe') or 1",
    "change a mode": "os.chmod(f'{home}/secret', 0o600) or 1",
    "change a mode by descriptor": "os.fchmod(os.open('/dev/null', os.O_RDONLY), 0o666) or 1",
    "change the owner": "os.chown(f'{home}/secret', os.getuid(), os.getgid()) or 1",
    "change times": "os.utime(f'{home}/secret') or 1",
    "change attributes": "os.setxattr(f'{home}/secret', 'user.canary', b'1') or 1",
    "read a file": "open(f'{home}/secret').read()",
    "read through a link": "open(f'{home}/pointer').read()",
    "read through /proc": "open(f'/proc/self/root{home}/secret').read()",
    "read through the folder of another process": "open(f'/proc/{other}/root{home}/secret').read()",
    "list a folder": "os.listdir(home)",
    "list the system": "os.listdir('/')",
    "read users": "open('/etc/passwd').read()",
    "read a command line": "open(f'/proc/{other}/cmdline').read()",
    "read variables of another process": "open(f'/proc/{other}/environ').read()",
    "read its own variables": "os.environ.get('ATTNLAB_CANARY')",
    "read descriptors of another process": "os.listdir(f'/proc/{other}/fd')",
    "read the memory of another process": "open(f'/proc/{other}/mem', 'rb')",
    "watch a folder": f"{SYSCALL}({294 if X86 else 26}, 0) >= 0 or None",
    "use a descriptor of its parent": f"[n for n in {DESCRIPTORS} if os.fstat(n).st_ino == canary] or None",
    "TCP": "__import__('socket').create_connection(('127.0.0.1', port))",
    "UDP": "__import__('socket').socket(2, 2).sendto(b'canary', ('127.0.0.1', port))",
    "IPv6": "__import__('socket').socket(10, 1)",
    "local socket": "__import__('socket').socket(1, 1)",
    "pair of sockets": "__import__('socket').socketpair()",
    "io_uring": f"{SYSCALL}(425, 1, __import__('ctypes').create_string_buffer(120)) >= 0 or None",
    "fork": "os.fork() or os._exit(0)",
    "vfork": f"{SYSCALL}({58 if X86 else 220}, 17, 0, 0, 0, 0) >= 0 or None",
    "clone3": f"{SYSCALL}(435, __import__('ctypes').create_string_buffer(88), 88) >= 0 or None",
    "start a program": "__import__('subprocess').run(['true'])",
    "spawn a program": "os.posix_spawn('/bin/true', ['true'], {})",
    "start a thread": "__import__('threading').Thread(target=print).start() or 1",
    "signal another process": "os.kill(other, 0) or 1",
    "signal its parent": "os.kill(os.getppid(), 0) or 1",
    "signal all": "os.kill(-1, 0) or 1",
    "signal by thread": f"{SYSCALL}({234 if X86 else 131}, other, other, 0) == 0 or None",
    "signal by descriptor": "__import__('signal').pidfd_send_signal(os.pidfd_open(other), 0) or 1",
    "direct signals of input": "__import__('fcntl').fcntl(0, 8, other) == 0 or None",
    "survive its parent": "__import__('ctypes').CDLL(None).prctl(1, 0) == 0 or None",
    "limits of another process": "__import__('resource').prlimit(other, 7)",
    "priority of another process": "os.setpriority(os.PRIO_PROCESS, other, 0) or 1",
    "cores of another process": "os.sched_setaffinity(other, os.sched_getaffinity(other)) or 1",
    "trace another process": f"{SYSCALL}({101 if X86 else 117}, 0x4206, other, 0, 0) == 0 or None",
    "System V memory": f"{SYSCALL}({29 if X86 else 194}, 0, 4096, 0o1600) >= 0 or None",
    "attach memory of System V": f"{SYSCALL}({30 if X86 else 196}, segment, 0, 0o10000) != -1 or None",
    "status of memory of System V": f"{SYSCALL}({31 if X86 else 195}, segment, 2, bytes(256)) == 0 or None",
    "flags of a file it may read": "__import__('fcntl').ioctl(os.open(os.__file__, 0), 0x80086601, bytes(8))",
    "watch a file system": f"{SYSCALL}({300 if X86 else 262}, 0, 0) >= 0 or None",
    "message queue": f"{SYSCALL}({240 if X86 else 180}, b'canary', 0o102, 0o600, 0) >= 0 or None",
    "key ring": f"{SYSCALL}({250 if X86 else 219}, 0, -3, 1) >= 0 or None",
    "user namespace": f"{SYSCALL}({272 if X86 else 97}, 0x10000000) == 0 or None",
    "root folder": "os.chroot(home) or 1",
    "rename the machine": "__import__('socket').sethostname(os.uname().nodename) or 1",
    "raise its limits": "__import__('resource').setrlimit(__import__('resource').RLIMIT_AS, (-1, -1)) or 1",
    "fill anonymous memory": "os.write(os.memfd_create('canary'), b'x')",
}
REFUSALS = ("PermissionError", "OSError", "RuntimeError: can't start new thread", "ValueError: not allowed to raise")


@pytest.fixture
def names(tmp_path: Path) -> Iterator[dict[str, object]]:
    """What attacks aim at."""
    home = tmp_path / "home"
    home.mkdir()
    (home / "secret").write_text("canary")
    (home / "other").touch()
    (home / "pointer").symlink_to("secret")
    (home / "empty").mkdir()
    sleeper = subprocess.Popen(["sleep", "600"])
    with socket.create_server(("127.0.0.1", 0)) as server, (home / "secret").open() as opened:
        os.set_inheritable(opened.fileno(), True)
        canary = os.fstat(opened.fileno()).st_ino
        library = ctypes.CDLL(None)
        segment = library.shmget(0, 4096, 0o1600)
        port = server.getsockname()[1]
        yield {"home": str(home), "other": sleeper.pid, "port": port, "canary": canary, "segment": segment}
        library.shmctl(segment, 0, None)
    sleeper.kill()
    sleeper.wait()


def succeeds(child: Child, names: dict[str, object], expression: str) -> bool:
    """Whether an expression has a value in the child."""
    child.call(exec, f"import builtins, os; builtins.__dict__.update({names | {'own': str(child.folder)}!r}, os=os)")
    try:
        return child.call(eval, f"({expression}) is not None", limits=Limits(20))
    except Raised as error:
        if not str(error).startswith(REFUSALS):
            raise
        return False


@pytest.fixture(scope="module")
def child() -> Iterator[Child]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ATTNLAB_CANARY", "secret")
        with Child(sandbox=MEMORY) as confined:
            yield confined


@pytest.mark.parametrize("name", ATTACKS)
def test_attacks_fail(child: Child, names: dict[str, object], name: str) -> None:
    assert not succeeds(child, names, ATTACKS[name])
    home = Path(str(names["home"]))
    assert sorted(path.name for path in home.iterdir()) == ["empty", "other", "pointer", "secret"]
    assert (home / "secret").read_text() == "canary"
    assert child.poll() is None, "the attack ended the process instead of failing"


# Fail without a sandbox too: raw calls that copy this process, and what depends on the user's rights or the kernel.
NOT_ALONE = {"vfork", "clone3", "io_uring", "IPv6", "key ring", "root folder", "rename the machine", "user namespace"}
NOT_ALONE |= {
    "flags of a file it may read",
    "watch a file system",
    "change attributes",
    "read users",
    "message queue",
    "use a descriptor of its parent",
}


@pytest.mark.processes
@pytest.mark.parametrize("name", ATTACKS.keys() - NOT_ALONE)
def test_attacks_succeed_without_a_sandbox(
    names: dict[str, object], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("ATTNLAB_CANARY", "secret")
    with Child() as plain:
        assert succeeds(plain, names, ATTACKS[name])


def test_limits_cannot_be_exceeded() -> None:
    with Child(sandbox=MEMORY) as child:
        with pytest.raises(MemoryExceeded, match="more than 0.268435 GB"):
            child.call(bytearray, 2 * MEMORY)
        assert child.call(len, b"still there") == 11
        with pytest.raises(Raised, match="Too many open files"):
            child.call(exec, "import os\nfor _ in range(100): os.dup(1)")
        with pytest.raises(ChildError, match="too long"):
            child.call(bytes, 2**21, limits=Limits(message=2**20))
    for code in ("while True: pass", "while True: os.read(0, 0)", "while True: print('x' * 10**6)"):
        with Child(sandbox=MEMORY) as child, pytest.raises(ChildError, match="more than 0.5 s"):
            child.call(exec, f"import os\n{code}", limits=Limits(0.5))


FLOOD = """
import os, socket, stat
from attnlab.supervisor import _encode, Item, Ready
def is_socket(number):
    try:
        return stat.S_ISSOCK(os.fstat(number).st_mode)
    except OSError:
        return False
number = next(filter(is_socket, range(3, 100)))
while True:
    socket.socket(fileno=os.dup(number)).sendall(%s)
"""


@pytest.mark.parametrize("message", ["_encode(Ready())", "_encode(Ready()) * 5000", "_encode(Item(1))", "b'x' * 100"])
def test_forged_messages_do_not_keep_the_parent_waiting(message: str) -> None:
    with Child(sandbox=MEMORY) as child, pytest.raises(ChildError, match="cannot be read"):
        child.call(exec, FLOOD % message, {}, limits=Limits(5, message=2**20))
    with Child(sandbox=MEMORY) as child:
        child.send(exec, FLOOD % message, {}, limits=Limits(1, message=2**20))
        with pytest.raises(ChildError):
            while True:
                child.receive()


def test_a_confined_process_ends_with_its_parent(tmp_path: Path) -> None:
    """Even one that has closed all descriptors, if its parent is killed."""
    code = (
        "import sys, time; from attnlab.supervisor import Child; child = Child(sandbox=2**28)\n"
        "child.send(exec, 'import os, time\\nos.closerange(0, 100)\\ntime.sleep(60)'); time.sleep(1)\n"
        "print(child.pid, flush=True); time.sleep(60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    confined = int(parent.stdout.readline())
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    until = time.monotonic() + 10
    while Path(f"/proc/{confined}").exists() and time.monotonic() < until:
        time.sleep(0.02)
    assert not Path(f"/proc/{confined}").exists()


@pytest.mark.parametrize("code", ["os.closerange(3, 64)", "os.dup2(os.open(os.devnull, 0), sockets()[0])"])
def test_a_closed_connection_ends_the_call(code: str) -> None:
    code = f"import os, time\nsockets = lambda: [n for n in range(3, 64) if os.path.exists(f'/proc/self/fd/{{n}}')]\n{code}"
    began = time.monotonic()
    with Child(sandbox=MEMORY) as child, pytest.raises(ChildError):
        child.call(exec, f"{code}\ntime.sleep(60)", {}, limits=Limits(2))
    assert time.monotonic() - began < 50


def test_arguments_that_nobody_reads_end_with_the_time_limit() -> None:
    early = FLOOD.replace("while True:\n    ", "") % "_encode(Done(None))" + "\nimport time; time.sleep(60)"
    began = time.monotonic()
    with Child(sandbox=MEMORY) as child:
        child.call(exec, early.replace("Item, Ready", "Done"), {}, limits=Limits(30))
        with pytest.raises(ChildError, match="more than 1 s"):
            child.call(len, bytes(2**24), limits=Limits(1))
    assert time.monotonic() - began < 50


def test_files_cannot_be_emptied_where_landlock_does_not_know_it(tmp_path: Path) -> None:
    """Before its third version, a file that may be read may be emptied."""
    (tmp_path / "canary").write_text("canary")
    code = "import os, sys; from pathlib import Path; from attnlab import sandbox\n"
    code += "sandbox._landlock_version = lambda: 2; folder = Path(sys.argv[1]); sandbox.enter(folder)\n"
    code += "os.open(folder / 'canary', os.O_RDONLY); os.open(folder / 'canary', os.O_RDONLY | os.O_TRUNC)"
    ended = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=False)
    assert "PermissionError" in ended.stderr.splitlines()[-1]
    assert (tmp_path / "canary").read_text() == "canary"


def test_a_process_with_threads_cannot_be_confined() -> None:
    code = "import threading, time; threading.Thread(target=time.sleep, args=[9], daemon=True).start()\n"
    code += "from attnlab import sandbox; from pathlib import Path; sandbox.enter(Path('.'))"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "before any thread is started" in ended.stderr

"""Runs inside the process of which a snapshot is taken, and makes its copies.

Installed as `sitecustomize`, so it uses the standard library only. It waits until awslambdaric asks for a restore,
after the function's snapshot hooks, and forks there. A copy differs from one on Lambda only where fork cannot do the
same: it has its own process id, which is hidden, and none of the threads; thread pools start new ones.

Fork handlers of Python run, because they make locks usable after a fork, and those of OpenTelemetry, which restart its
thread. Those of other libraries do not run: they would reconnect, but on Lambda nothing notifies them of a restore. For
the same reason the state of `random`, which Python's handlers renew, is restored, and `os.getpid` does not change.
"""

import ctypes
import fcntl
import gc
import importlib
import importlib.util
import json
import os
import random
import re
import select
import signal
import socket
import stat
import sys
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.machinery import ModuleSpec
from itertools import permutations
from pathlib import Path
from threading import Semaphore
from types import ModuleType
from typing import Any

CLIENT = "awslambdaric.lambda_runtime_client"
NATIVE = "runtime_client"
CONTROL = "EMULATOR_SNAPSHOT_CONTROL"
GRAVEYARD = "EMULATOR_SNAPSHOT_GRAVEYARD"
OUTPUT = "EMULATOR_SNAPSHOT_OUTPUT"
PR_SET_PDEATHSIG = 1
Address = tuple[str, int]
_DESCRIPTORS = Path("/proc/self/fd")


class ClientPatch:
    """An import hook that patches awslambdaric's client, once."""

    def __init__(self, *addresses: Address) -> None:
        """Take the addresses of the emulator: CONTROL, GRAVEYARD and OUTPUT."""
        self._addresses = addresses

    def find_spec(self, name: str, _path: object = None, _target: object = None) -> ModuleSpec | None:
        """Find the module with the other finders, and patch it after it has been executed."""
        if name != CLIENT:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return None
        run = spec.loader.exec_module

        def run_and_patch(module: ModuleType) -> None:
            # The native part reads the address when it is loaded, but each copy has another address.
            sys.modules[NATIVE] = None  # type: ignore[assignment]  # it then cannot be imported
            run(module)
            del sys.modules[NATIVE]
            self._patch(module)

        spec.loader.exec_module = run_and_patch  # type: ignore[method-assign]  # of this loader only
        return spec

    def _patch(self, module: ModuleType) -> None:
        """Make copies where the client waits for a restore."""
        client_class: Any = module.BaseLambdaRuntimeClient
        wait_for_restore = client_class.restore_next

        def restore_next(client: Any) -> None:
            os.environ.update(Original(*self._addresses).serve())
            client.lambda_runtime_address = os.environ["AWS_LAMBDA_RUNTIME_API"]
            native: Any = importlib.import_module(NATIVE)
            native.initialize_client(module._user_agent())  # noqa: SLF001 - as the module does when it is imported
            module.runtime_client = native  # type: ignore[attr-defined]  # it is None where that failed
            wait_for_restore(client)

        client_class.restore_next = restore_next


class Original:
    """The process at the time of the snapshot. It only makes copies and never continues itself."""

    def __init__(self, control: Address, graveyard: Address, output: Address) -> None:
        """Collect what copies would share, and connect to the emulator."""
        self._graveyard = graveyard
        self._output = output
        pid = self._pid = os.getpid()
        # Copies show the original's id: from another id, libraries would conclude that there was a fork.
        os.getpid = lambda: pid
        self._inherited = _descriptors()
        self._pairs = _connected_pairs(self._inherited)
        self._thread_pools = [pool for pool in gc.get_objects() if isinstance(pool, ThreadPoolExecutor)]
        self._copies: dict[int, int] = {}
        self._control = socket.create_connection(control)

    def serve(self) -> dict[str, str]:
        """Make a copy whenever the emulator asks for one. Returns only in a copy, with that copy's variables."""
        self._tell(taken=True)
        orders = b""
        while True:
            ready = select.poll()
            for descriptor in (self._control.fileno(), *self._copies):
                ready.register(descriptor, select.POLLIN)
            for descriptor, _ in ready.poll():
                if descriptor in self._copies:
                    self._reap(descriptor)
                    continue
                data = self._control.recv(65536)
                if not data:
                    os._exit(0)
                *lines, orders = (orders + data).split(b"\n")
                for line in lines:
                    pid = _fork()
                    if pid == 0:
                        self._become_a_copy()
                        variables: dict[str, str] = json.loads(line)
                        return variables
                    self._copies[os.pidfd_open(pid)] = pid
                    self._tell(restored=pid)

    def _tell(self, **message: Any) -> None:
        self._control.sendall(json.dumps(message).encode() + b"\n")

    def _reap(self, descriptor: int) -> None:
        pid = self._copies.pop(descriptor)
        os.close(descriptor)
        self._tell(ended=pid, code=os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

    def _become_a_copy(self) -> None:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != self._pid:
            os._exit(1)
        self._control.close()
        for descriptor in self._copies:
            os.close(descriptor)
        os.setsid()
        for pool in self._thread_pools:
            # Its threads are gone; it starts new ones when it has work.
            pool._threads.clear()  # type: ignore[attr-defined]  # noqa: SLF001 - there is no public way
            pool._idle_semaphore = Semaphore(0)  # noqa: SLF001
        for first, second in self._pairs:
            _replace_pair(first, second)
        for descriptor in self._inherited:
            if _family(descriptor) in {socket.AF_INET, socket.AF_INET6}:
                _cut(descriptor, self._graveyard)
        for descriptor in self._inherited:
            if str((_DESCRIPTORS / str(descriptor)).readlink()) == "anon_inode:[eventpoll]":
                _replace_epoll(descriptor)
        with socket.create_connection(self._output) as output:
            for descriptor in (1, 2):
                os.dup2(output.fileno(), descriptor)


def _fork() -> int:
    state = random.getstate()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # fork warns if the process has threads
        pid = os.fork()
    random.setstate(state)
    return pid


def _cut(descriptor: int, graveyard: Address) -> None:
    """Replace a connection with one that is never answered. The emulator records what is sent to it."""
    blocks = os.get_blocking(descriptor)
    with socket.create_connection(graveyard) as dead:
        os.dup2(dead.fileno(), descriptor, inheritable=False)
    os.set_blocking(descriptor, blocks)


def _replace_epoll(descriptor: int) -> None:
    """Replace an event loop's epoll: a shared one would also report the events of other copies."""
    watched = Path(f"/proc/self/fdinfo/{descriptor}").read_text()
    with select.epoll() as own:
        for target, events in re.findall(r"^tfd:\s*(\d+) events:\s*([0-9a-f]+)", watched, re.MULTILINE):
            own.register(int(target), int(events, 16))
        os.dup2(own.fileno(), descriptor, inheritable=False)


def _replace_pair(first: int, second: int) -> None:
    """Replace both ends of a pipe or a socket pair, which event loops use to wake up."""
    blocking = os.get_blocking(first), os.get_blocking(second)
    is_pipe = stat.S_ISFIFO(os.fstat(first).st_mode)
    ends = os.pipe() if is_pipe else tuple(end.detach() for end in socket.socketpair())
    for end, descriptor, blocks in zip(ends, (first, second), blocking, strict=True):
        os.dup2(end, descriptor, inheritable=False)
        os.close(end)
        os.set_blocking(descriptor, blocks)


def _connected_pairs(descriptors: Sequence[int]) -> list[tuple[int, int]]:
    """Return the pipes (reading end first) and the socket pairs that have both ends in this process."""
    return [
        (first, second)
        for first, second in permutations(descriptors, 2)
        if _is_pipe(first, second) or (first < second and _is_socket_pair(first, second))
    ]


def _is_pipe(reading: int, writing: int) -> bool:
    one, other = os.fstat(reading), os.fstat(writing)
    modes = [fcntl.fcntl(end, fcntl.F_GETFL) & os.O_ACCMODE for end in (reading, writing)]
    return stat.S_ISFIFO(one.st_mode) and one.st_ino == other.st_ino and modes == [os.O_RDONLY, os.O_WRONLY]


def _is_socket_pair(first: int, second: int) -> bool:
    """Whether bytes sent to one socket arrive at the other. Only unnamed sockets are tried."""
    if not _family(first) == _family(second) == socket.AF_UNIX:
        return False
    with socket.socket(fileno=os.dup(first)) as sender, socket.socket(fileno=os.dup(second)) as receiver:
        try:
            if sender.getpeername() or receiver.getpeername():
                return False
            sender.send(b"?", socket.MSG_DONTWAIT)
            return receiver.recv(1, socket.MSG_DONTWAIT) == b"?"
        except OSError:
            return False


def _descriptors() -> list[int]:
    """Return the open descriptors. The listing's own descriptor, closed since, is left out."""
    return [descriptor for descriptor in map(int, os.listdir(_DESCRIPTORS)) if _is_open(descriptor)]  # noqa: PTH208


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def _family(descriptor: int) -> int | None:
    if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
        return None
    with socket.socket(fileno=os.dup(descriptor)) as known:
        return known.family


def _register_at_fork(**handlers: Any) -> None:
    """Replaces `os.register_at_fork`: accepts only handlers of Python and OpenTelemetry."""
    caller = str(sys._getframe(1).f_globals.get("__name__")).partition(".")[0]  # noqa: SLF001 - the usual way
    if caller in sys.stdlib_module_names or caller == "opentelemetry":
        _really_register_at_fork(**handlers)


def _address(text: str) -> Address:
    host, port = text.split(":")
    return host, int(port)


if CONTROL in os.environ:
    addresses = (_address(os.environ.pop(name)) for name in (CONTROL, GRAVEYARD, OUTPUT))
    _really_register_at_fork = os.register_at_fork
    os.register_at_fork = _register_at_fork
    sys.meta_path.insert(0, ClientPatch(*addresses))

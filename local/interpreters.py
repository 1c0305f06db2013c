"""Finds a Python of the version and CPU that something was built for: `python -m local.interpreters 3.13`.

Lambda's Python, which few machines have, comes from Debian's packages when it is not found here: unpacked into
`.build`, for another CPU with an emulator beside it.
"""

import argparse
import hashlib
import platform
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from local.debian import unpack
from local.places import ROOT
from local.processes import ServiceError, locked

PYTHONS = ROOT / ".build" / "pythons"
# The version in Debian's release.
UNPACKED = "3.13"
RETRY_SECONDS = 120.0
# Libraries that extensions also need and Lambda's image has: AWS's runtime client is written in C++.
LIBRARIES = ("libstdc++6",)
# By the CPU's name in wheels: its name in Debian, and where its packages have the dynamic loader.
DEBIAN = {
    "aarch64": ("arm64", "lib/ld-linux-aarch64.so.1"),
    "x86_64": ("amd64", "lib64/ld-linux-x86-64.so.2"),
}
PROBE = """
import platform, sys
print("%d.%d" % sys.version_info[:2], platform.machine().replace("arm64", "aarch64"), platform.libc_ver()[0])
sys.exit(sys.prefix != sys.base_prefix)
"""

# Uses the unpacked libraries, whatever this machine has, and keeps argv[0]: Python finds its library by it, and starts
# itself with it.
NATIVE = """#!/bin/sh
root="${{0%/bin/*}}"
libraries="$root/usr/lib/{machine}-linux-gnu"
exec "$root/{loader}" --argv0 "$0" --library-path "$libraries" "$root/usr/bin/python{version}" "$@"
"""
EMULATED = """#!/bin/sh
root="${{0%/bin/*}}"
exec "{emulator}" -L "$root" -0 "$0" "$root/usr/bin/python{version}" "$@"
"""


def this_machine() -> str:
    """Return the CPU as wheels name it."""
    return {"arm64": "aarch64", "AMD64": "x86_64"}.get(platform.machine(), platform.machine())


def built_for(packages: Path) -> tuple[str, str] | None:
    """Return the version and CPU that the extensions of a built layer are for; None without extensions."""
    for extension in packages.glob("*.cpython-*.so"):
        if found := re.search(r"\.cpython-(\d)(\d+)-(\w+)-linux-gnu\.so$", extension.name):
            return f"{found[1]}.{found[2]}", found[3]
    return None


def find_python(version: str, machine: str = "") -> str:
    """Return the path of an interpreter, this machine's own or an unpacked one. Raises ServiceError if there is none.

    An interpreter of a virtual environment is never returned: it would bring its packages along.
    """
    machine = machine or this_machine()
    for candidate in _candidates(version, machine):
        if _is_suitable(candidate, version, machine):
            return candidate
    if version != UNPACKED:
        raise ServiceError(f"No python{version} is on the path.")
    if machine not in DEBIAN:
        raise ServiceError(f"No python{version} is on the path, and none is known for {machine}.")
    # Bytecode is the same for every CPU, and is written by this one.
    compiler = "" if machine == this_machine() else find_python(version)
    try:
        with locked(PYTHONS):
            if not _is_suitable(str(python := _unpacked(machine)), version, machine):
                _unpack_unless_just_failed(python.parent.parent, machine, compiler)
        return str(python)
    except ServiceError as error:
        reason = f"none can be unpacked from Debian's packages: {error}"
        raise ServiceError(f"No python{version} for {machine} is on the path, and {reason}") from None


def bare_python(version: str, machine: str = "") -> str:
    """Return an interpreter without packages, like Lambda's: this machine's own may have some installed."""
    python = find_python(version, machine)
    if Path(python).is_relative_to(PYTHONS):
        return python
    folder = PYTHONS / f"bare-{version}-{hashlib.sha256(python.encode()).hexdigest()[:8]}"
    with locked(PYTHONS):
        if not (folder / "bin" / "python").exists():
            subprocess.run([python, "-I", "-m", "venv", "--without-pip", "--symlinks", str(folder)], check=True)
    return str(folder / "bin" / "python")


def _candidates(version: str, machine: str) -> Iterator[str]:
    """Yield the interpreters on this machine, the quickest to check first."""
    if version == "{}.{}".format(*sys.version_info):
        yield getattr(sys, "_base_executable", sys.executable)
    if version == UNPACKED:
        yield str(_unpacked(machine))
    if found := shutil.which(f"python{version}"):
        yield found


def _unpacked(machine: str) -> Path:
    return PYTHONS / f"{UNPACKED}-{machine}" / "bin" / f"python{UNPACKED}"


def _is_suitable(python: str, version: str, machine: str) -> bool:
    try:
        done = subprocess.run([python, "-I", "-c", PROBE], capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return False
    # Linux packages are built for glibc.
    expected = [version, machine, *(["glibc"] if sys.platform == "linux" else [])]
    return done.returncode == 0 and done.stdout.split() == expected


def _unpack_unless_just_failed(root: Path, machine: str, compiler: str) -> None:
    """Repeat a recent failure at once: a build asks several times, and an unreachable mirror is slow to fail."""
    failure = root.with_name(f"{root.name}.failure")
    if failure.exists() and time.time() - failure.stat().st_mtime < RETRY_SECONDS:
        raise ServiceError(failure.read_text())
    try:
        _unpack(root, machine, compiler)
    except ServiceError as error:
        failure.write_text(str(error))
        raise


def _unpack(root: Path, machine: str, compiler: str) -> None:
    if sys.platform != "linux":
        raise ServiceError("this is not Linux.")
    print(f"Unpacking Python {UNPACKED} for {machine} from Debian's packages ...", file=sys.stderr, flush=True)
    architecture, loader = DEBIAN[machine]
    emulator = "" if machine == this_machine() else _emulator(machine)
    unfinished = root.with_name(f"{root.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    shutil.rmtree(root, ignore_errors=True)
    unpack([f"python{UNPACKED}", *LIBRARIES], architecture, unfinished)
    for link in ("lib", "lib64"):
        if not (unfinished / link).exists():
            (unfinished / link).symlink_to(f"usr/{link}")
    script = EMULATED if emulator else NATIVE
    python = unfinished / "bin" / f"python{UNPACKED}"
    python.parent.mkdir()
    python.write_text(script.format(loader=loader, machine=machine, version=UNPACKED, emulator=emulator))
    python.chmod(0o755)
    if not _is_suitable(str(python), UNPACKED, machine):
        raise ServiceError("what was unpacked does not run.")
    # Debian compiles the library at installation, which unpacking skips.
    library = unfinished / "usr" / "lib" / f"python{UNPACKED}"
    options = ["-q", "-j", "0", "--invalidation-mode", "unchecked-hash", "-s", str(unfinished), "-p", str(root)]
    command = [compiler or str(python), "-m", "compileall", *options, str(library)]
    subprocess.run(command, check=False, stdout=subprocess.DEVNULL)
    unfinished.rename(root)


def _emulator(machine: str) -> str:
    """Return qemu for programs of another CPU."""
    for name in (f"qemu-{machine}-static", f"qemu-{machine}"):
        if found := shutil.which(name):
            return found
    if this_machine() not in DEBIAN:
        raise ServiceError(f"qemu-{machine}-static is missing.")
    root = PYTHONS / "qemu"
    if not root.exists():
        unfinished = root.with_name(f"{root.name}.unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        unpack(["qemu-user"], DEBIAN[this_machine()][0], unfinished)
        unfinished.rename(root)
    return str(root / "usr" / "bin" / f"qemu-{machine}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the interpreter's path; without one, say why."""
    parser = argparse.ArgumentParser(prog="python -m local.interpreters", description=__doc__)
    parser.add_argument("version", nargs="?", default=UNPACKED)
    parser.add_argument("machine", nargs="?", default=this_machine(), choices=sorted({*DEBIAN, this_machine()}))
    options = parser.parse_args(arguments)
    try:
        print(find_python(options.version, options.machine))
    except ServiceError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()

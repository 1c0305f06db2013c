"""A Python of another version or CPU than the one that runs here."""

import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest

from local.debian import unpack
from local.interpreters import built_for, find_python, this_machine
from local.processes import ServiceError

HERE = "{}.{}".format(*sys.version_info)


def python_on_path(folder: Path, name: str, script: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a program before everything else on the path."""
    program = folder / name
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    return program


@pytest.mark.parametrize(
    ("extension", "target"),
    [
        ("runtime_client.cpython-313-aarch64-linux-gnu.so", ("3.13", "aarch64")),
        ("runtime_client.cpython-311-x86_64-linux-gnu.so", ("3.11", "x86_64")),
        ("any.abi3.so", None),
    ],
)
def test_a_layer_tells_what_it_was_built_for(extension: str, target: tuple[str, str] | None, tmp_path: Path) -> None:
    (tmp_path / extension).touch()
    assert built_for(tmp_path) == target


def test_the_version_that_runs_here_is_found_outside_its_environment() -> None:
    program = "import sys; print('%d.%d' % sys.version_info[:2], sys.prefix == sys.base_prefix)"
    done = subprocess.run([find_python(HERE), "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [HERE, "True"]


def test_a_python_on_the_path_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = python_on_path(tmp_path, "python3.99", f"echo 3.99 {this_machine()} glibc", monkeypatch)
    assert find_python("3.99") == str(program)


@pytest.mark.parametrize(
    "script",
    ["exit 127", "echo 3.98 $(uname -m) glibc", "echo 3.99 sparc glibc", "echo 3.99 $(uname -m) glibc; exit 1"],
)
def test_what_is_only_named_like_it_is_not_taken(script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python_on_path(tmp_path, "python3.99", script, monkeypatch)
    with pytest.raises(ServiceError, match=r"No python3\.99 is on the path"):
        find_python("3.99")


@pytest.mark.timeout(900)  # it may have to be unpacked first
def test_python_3_13_starts_itself_again(python313: str) -> None:
    program = "import subprocess, sys; print(subprocess.check_output([sys.executable, '-V'], text=True))"
    done = subprocess.run([python313, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("Python 3.13.")


@pytest.mark.skipif(sys.platform != "linux", reason="apt is looked for first")
def test_debians_release_is_asked_for_where_this_machine_has_its_packages_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configured = [
        "http://mirror.test/debian/ bookworm main",
        "http://mirror.test/debian/ bookworm-updates main",
        "http://mirror.test/debian/ bookworm-backports main",
        "http://mirror.test/debian/ bookworm contrib",
        "http://mirror.test/security/ bookworm-security main",
        "http://other.test/ nodistro main",
    ]
    (tmp_path / "configured").write_text("\n".join(configured))
    # It says what it is configured with, and fails with the sources that it is then given.
    script = f"""
[ "$1" = indextargets ] && exec cat {tmp_path}/configured
for option; do case "$option" in -oDir::Etc::sourcelist=*) cat "${{option#*=}}" >&2 ;; esac; done
exit 100"""
    python_on_path(tmp_path, "apt-get", script, monkeypatch)
    python_on_path(tmp_path, "dpkg-deb", "exit 1", monkeypatch)
    system = {"ID": "debian", "VERSION_CODENAME": "bookworm"}
    monkeypatch.setattr(platform, "freedesktop_os_release", lambda: system)
    with pytest.raises(ServiceError) as failed:
        unpack(["python3.13"], "amd64", tmp_path / "root")
    asked = set(re.findall(r"http://\S+ \S+ main", str(failed.value)))
    assert asked == {
        "http://mirror.test/debian/ trixie main",
        "http://mirror.test/debian/ trixie-updates main",
        "http://mirror.test/security/ trixie-security main",
    }

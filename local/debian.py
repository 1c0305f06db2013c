"""Downloads packages of one Debian release with this machine's apt and unpacks them. Nothing is installed.

apt uses the mirror, the proxy and the keyring that are configured here. Its lists and state are in our own folder, so
root is not needed and the machine's apt state does not change.
"""

import platform
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from local.processes import ServiceError

RELEASE = "trixie"
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
APT_SECONDS = 600


def unpack(packages: list[str], architecture: str, root: Path) -> None:
    """Unpack packages of the release, with all their dependencies, into `root`. Takes seconds to a minute."""
    with tempfile.TemporaryDirectory(prefix="apt-") as scratch:
        archives = _download(packages, architecture, Path(scratch))
        root.mkdir(parents=True)
        for archive in archives:
            _run("dpkg-deb", "--extract", str(archive), str(root))


def _download(packages: list[str], architecture: str, folder: Path) -> list[Path]:
    sources = folder / "sources.list"
    sources.write_text("".join(f"{line}\n" for line in _sources()))
    status = folder / "state" / "status"
    for parent in (folder / "lists/partial", folder / "cache/archives/partial", status.parent):
        parent.mkdir(parents=True)
    # With an empty status file no package counts as installed, so dependencies are downloaded as well.
    status.touch()
    options = {
        "APT::Architecture": architecture,
        "APT::Architectures::": architecture,
        "APT::Install-Recommends": "false",
        "APT::Sandbox::User": "root",  # its own user could not write to our folder
        "Acquire::Languages": "none",
        "Acquire::Retries": "1",
        "Acquire::http::Timeout": "20",
        "Acquire::https::Timeout": "20",
        "Dir::Cache": str(folder / "cache"),
        "Dir::Etc::sourcelist": str(sources),
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::Etc::preferencesparts": "/dev/null",
        "Dir::State": str(status.parent),
        "Dir::State::lists": str(folder / "lists"),
        "Dir::State::status": str(status),
    }
    apt = ["apt-get", "-qq", *(f"-o{name}={value}" for name, value in options.items())]
    # A failed update is not an error: the sources may include an unrelated mirror. The install decides.
    update = subprocess.run([*apt, "update"], capture_output=True, text=True, check=False, timeout=APT_SECONDS)
    try:
        _run(*apt, "--yes", "--download-only", "install", *packages)
    except ServiceError as error:
        raise ServiceError(f"{error} {' '.join(update.stderr.split())}".strip()) from None
    return sorted((folder / "cache/archives").glob("*.deb"))


def _sources() -> list[str]:
    """Return the sources of the release: those of this machine, with its own release replaced."""
    for tool in ("apt-get", "dpkg-deb"):
        if shutil.which(tool) is None:
            raise ServiceError(f"{tool} is missing, which Debian has.")
    system = platform.freedesktop_os_release()
    if system.get("ID") != "debian":
        raise ServiceError(f"apt reads the archive of {system.get('NAME', 'another system')} here, not Debian's.")
    suites = "|".join({re.escape(system.get("VERSION_CODENAME", RELEASE)), "stable", "testing", "unstable", "sid"})
    listed = _run("apt-get", "indextargets", "--no-release-info", "--format", "$(REPO_URI) $(RELEASE) $(COMPONENT)")
    found = re.findall(rf"^(\S+) (?:{suites})(|-updates|-security) main$", listed, re.MULTILINE)
    signed = f"[signed-by={KEYRING}] " if KEYRING.exists() else ""
    if not found:
        raise ServiceError("apt has no source of Debian's own packages configured.")
    return sorted({f"deb {signed}{address} {RELEASE}{suffix} main" for address, suffix in found})


def _run(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=APT_SECONDS)
    except subprocess.TimeoutExpired:
        raise ServiceError(f"{command[0]} did not end within {APT_SECONDS} seconds.") from None
    if done.returncode:
        raise ServiceError(f"{command[0]} failed: {' '.join(done.stderr.split())}")
    return done.stdout

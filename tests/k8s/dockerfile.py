"""Reads the Dockerfiles of this repository, and makes a root file system like that of an image, without Docker.

`enter` interprets the last stage of a Dockerfile: users, files, links, environment, entrypoint. It does not
install anything: the programs and packages are those of this machine, at their own paths.
"""

import ctypes
import os
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]

NEW_MOUNTS = 0x00020000
BIND, REMOUNT, READ_ONLY, PRIVATE, RECURSIVE = 4096, 32, 1, 1 << 18, 16384
NO_NEW_PRIVILEGES = 38

libc = ctypes.CDLL(None, use_errno=True)


def instructions(path: Path) -> list[tuple[str, str]]:
    """Returns (instruction, arguments) of a Dockerfile, with joined continuation lines and without comments."""
    lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ").splitlines()
    return [(line.split(None, 1)[0], line.split(None, 1)[1]) for line in joined]


def stages(path: Path) -> list[tuple[str, list[tuple[str, str]]]]:
    """Returns the stages as (name, instructions), the last one without a name."""
    found: list[tuple[str, list[tuple[str, str]]]] = []
    for word, rest in instructions(path):
        if word == "FROM":
            found.append((rest.split(" AS ")[-1] if " AS " in rest else "", []))
        if found:  # an argument of all stages comes before the first
            found[-1][1].append((word, rest))
    return found


@dataclass
class Image:
    """What a container runtime reads from an image."""

    env: dict[str, str] = field(default_factory=lambda: {"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"})
    user: tuple[int, int] = (0, 0)
    entrypoint: tuple[str, ...] = ()
    folder: str = "/"


def may_lock() -> bool:
    """Returns whether this machine allows a child to have a separate mount namespace."""
    code = f"import ctypes, sys; sys.exit(ctypes.CDLL(None).unshare({NEW_MOUNTS}))"
    return hasattr(libc, "unshare") and subprocess.run([sys.executable, "-c", code]).returncode == 0


def enter(dockerfile: Path, root: Path, mounts: dict[str, str]) -> Image:
    """Moves this process into the root file system of an image, which is read-only but for /tmp and `mounts`.

    The mounts are in a namespace of this process: the machine is not changed.

    Args:
        dockerfile: as in k8s/images.
        root: an empty folder.
        mounts: volumes of the pod: path in the image -> folder or file of this machine, which stays writable.
    """
    _must(libc.unshare(NEW_MOUNTS))
    _mount("none", "/", "", RECURSIVE | PRIVATE)
    _mount("tmpfs", str(root), "tmpfs", 0)
    root.chmod(0o755)
    _copy_machine(root)
    os.chroot(root)
    os.chdir("/")
    (_, base), *_, (_, last) = stages(dockerfile)
    image = Image()
    for word, rest in [*base, *last]:
        _apply(word, rest, image)
    for target, source in mounts.items():
        if Path(source).is_dir():
            Path(target).mkdir(parents=True, exist_ok=True)
        _mount(source, target, "", BIND)
    points = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    for point in points:
        if point not in (*mounts, "/tmp") and not point.startswith(("/proc", "/sys", "/dev")):
            libc.mount(b"none", point.encode(), None, REMOUNT | BIND | READ_ONLY, None)
    return image


def become(user: int, group: int) -> None:
    """Gives up root for good, like a container with `allowPrivilegeEscalation: false`."""
    os.setgroups([group])
    os.setgid(group)
    os.setuid(user)
    libc.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0)


def _copy_machine(root: Path) -> None:
    """Binds the folders of this machine, except those that an image has or a user other than root may not enter."""
    for entry in os.scandir("/"):
        target = root / entry.name
        if entry.is_symlink():
            target.symlink_to(os.readlink(entry.path))
        elif entry.name == "tmp":
            target.mkdir()
            _mount("tmpfs", str(target), "tmpfs", 0)
        elif entry.name == "etc":
            shutil.copytree(entry.path, target, symlinks=True, ignore_dangling_symlinks=True)
            for name in ("passwd", "group"):
                lines = (target / name).read_text().splitlines(keepends=True)
                (target / name).write_text("".join(line for line in lines if int(line.split(":")[2]) < 1000))
        elif entry.is_dir() and entry.name in ("opt", "run", "root"):
            target.mkdir(mode=0o755)
            for inner in os.scandir(entry.path):
                if inner.is_dir(follow_symlinks=False) and not root.is_relative_to(inner.path):
                    (target / inner.name).mkdir()
                    _mount(inner.path, str(target / inner.name), "", BIND | RECURSIVE)
        elif entry.is_dir():
            target.mkdir()
            _mount(entry.path, str(target), "", BIND | RECURSIVE)


def _apply(word: str, rest: str, image: Image) -> None:
    if word == "ENV":
        for pair in shlex.split(rest):
            name, _, value = pair.partition("=")
            image.env[name] = value.replace("$PATH", image.env["PATH"])
    elif word == "WORKDIR":
        image.folder = rest
        Path(rest).mkdir(parents=True, exist_ok=True)
    elif word == "USER":
        user, group = rest.split(":")
        image.user = (int(user), int(group))
    elif word == "ENTRYPOINT":
        # The machine of a test need not have tini, which only reaps.
        image.entrypoint = tuple(one for one in shlex.split(rest.strip("[]").replace(",", " ")) if one not in _INIT)
    elif word == "COPY":
        _copy(rest, image)
    elif word == "RUN" and not any(what in rest for what in _INSTALLS):
        subprocess.run(["sh", "-ec", rest], check=True, cwd=image.folder)


_INIT = ("tini", "--")
_INSTALLS = ("apt-get ", "pip ", "--mount=")


def _copy(rest: str, image: Image) -> None:
    if rest.startswith("--from=packages"):
        Path("/opt/venv").symlink_to(sys.prefix)
    if rest.startswith("--from="):
        return
    *sources, target = rest.split()
    for source in sources:
        where = Path(image.folder, target)
        if (ROOT / source).is_dir():
            shutil.copytree(ROOT / source, where, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
        else:
            (where if target.endswith("/") else where.parent).mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / source, where)


def _mount(source: str, target: str, kind: str, flags: int) -> None:
    _must(libc.mount(source.encode(), target.encode(), kind.encode() or None, flags, None))


def _must(result: int) -> None:
    if result:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

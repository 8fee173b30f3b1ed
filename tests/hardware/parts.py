"""What a host in a VM is made of: Debian packages by name, unpacked into a cache folder and never installed. The archive's
address, and the keys with which it is checked, are those that this host's apt uses."""

from __future__ import annotations

import gzip
import os
import re
import shutil
import subprocess
import tarfile
import time
from contextlib import suppress
from pathlib import Path

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "outfitter" / "hardware"
TOOLS = {"qemu-system-x86_64": "qemu-system-x86", "busybox": "busybox-static", "cpio": "cpio", "lspci": "pciutils",
         "modprobe": "kmod", "make": "make", "gcc": "gcc", "dpkg-deb": "dpkg", "apt-get": "apt", "xz": "xz-utils",
         "depmod": "kmod"}
SAMPLES = ("mtty", "mdpy", "mbochs")  # the kernel's own examples of mediated devices
TRIES, PAUSE = 3, 5.0  # of a download, and seconds in between
DRIVERS = ("virtio_pci", "9pnet_virtio", "9p", "overlay")  # what it takes to get to the root filesystem


class Missing(Exception):
    """A part that cannot be had here; the text names which, and what to do."""


def check_tools() -> None:
    lacking = {package for tool, package in TOOLS.items() if shutil.which(tool) is None}
    if lacking:
        raise Missing(f"needs programs of this machine: apt install {' '.join(sorted(lacking))}")


def _run(*words: str | Path, cwd: Path | None = None, env: dict[str, str] | None = None) -> str:
    done = subprocess.run([str(word) for word in words], cwd=cwd, env={**os.environ, **(env or {})}, text=True,
                          capture_output=True, check=False)
    if done.returncode:
        raise Missing(f"{' '.join(str(word) for word in words[:6])} failed: {(done.stderr or done.stdout).strip()[-500:]}")
    return done.stdout


def _unpack(package: str, target: Path, *, apt: dict[str, str] | None = None, suite: str = "") -> None:
    """Download a package and unpack it; once."""
    done = target / f".{package}"
    if done.exists():
        return
    drafts = target.parent / f"{target.name}.debs"
    drafts.mkdir(parents=True, exist_ok=True)
    target.mkdir(parents=True, exist_ok=True)
    wanted = f"{package}/{suite}" if suite else package
    print(f"  downloading {wanted}", flush=True)
    for old in drafts.glob(f"{package}_*.deb"):  # of a run that was killed
        old.unlink()
    _download(wanted, drafts, apt)
    for deb in drafts.glob(f"{package}_*.deb"):
        _run("dpkg-deb", "-x", deb, target)
        deb.unlink()
    done.touch()


def _download(wanted: str, folder: Path, apt: dict[str, str] | None) -> None:
    """A mirror may drop a connection, and may have a newer version than its list: then the lists are updated, if this process
    may."""
    unsandboxed = ("-o", "APT::Sandbox::User=root") if os.geteuid() == 0 else ()
    for tries_left in reversed(range(TRIES)):
        try:
            _run("apt-get", "download", "-q", "-o", "Acquire::Retries=3", *unsandboxed, wanted, cwd=folder, env=apt)
            break
        except Missing as error:
            if not tries_left:
                raise
            print(f"  trying again: {error}", flush=True)
            time.sleep(PAUSE)
            if apt is not None or os.geteuid() == 0:
                with suppress(Missing):  # what it was for reports it
                    _run("apt-get", "update", "-qq", "-o", "Acquire::Retries=3", env=apt)


def kernel() -> tuple[str, Path]:
    """The distribution's kernel for this architecture: its release, and the folder into which it was unpacked."""
    names = re.findall(r"linux-image-(\S+-amd64)$", _run("apt-cache", "depends", "linux-image-amd64"), re.MULTILINE)
    if not names:
        raise Missing("apt knows no package linux-image-amd64: this needs Debian's archive (apt-get update)")
    release = names[0]
    folder = CACHE / f"kernel-{release}"
    _unpack(f"linux-image-{release}", folder)
    modules = folder / "lib" / "modules" / release
    if not (modules / "modules.dep").exists():
        _run("depmod", "-b", folder, release)
    return release, folder


def mediated(release: str, folder: Path) -> bool:
    """Build the samples of mediated devices for a kernel, and put them among its modules."""
    target, done = folder / "lib" / "modules" / release / "updates", folder / ".mediated"
    if done.exists():
        return True
    version = ".".join(release.split(".")[:2])
    headers, build = CACHE / f"headers-{release}", CACHE / f"mdev-{release}"
    for package in (f"linux-headers-{release}", f"linux-headers-{release.removesuffix('-amd64')}-common",
                    f"linux-kbuild-{version}"):
        _unpack(package, headers)
    if not all((build / f"{name}.c").exists() for name in SAMPLES):
        source, draft = CACHE / f"source-{version}", CACHE / f"mdev-{release}.new"
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        _unpack(f"linux-source-{version}", source)
        archive = next((source / "usr" / "src").glob("linux-source-*.tar.xz"))
        print("  taking the samples out of the kernel's source", flush=True)
        with tarfile.open(archive, "r|xz") as tar:
            for member in tar:
                if "/samples/vfio-mdev/" in member.name and (content := tar.extractfile(member)):  # None: not a file
                    (draft / Path(member.name).name).write_bytes(content.read())
        shutil.rmtree(build, ignore_errors=True)
        draft.rename(build)
        shutil.rmtree(source)
    (build / "Makefile").write_text("obj-m := " + " ".join(f"{name}.o" for name in SAMPLES) + "\n")
    tree = headers / "usr" / "src" / f"linux-headers-{release}"
    for name in ("Makefile", ".kernelvariables"):  # they name the folders in which packages are installed
        if (tree / name).exists():
            text = (tree / name).read_text()
            (tree / name).write_text(re.sub(r"(?<![\w/.])/usr/(src|lib)/linux", rf"{headers}/usr/\1/linux", text))
    common = headers / "usr" / "src" / f"linux-headers-{release.removesuffix('-amd64')}-common"
    for name in ("scripts", "tools"):
        link = common / name
        if link.is_symlink() and not link.exists():
            link.unlink()
            link.symlink_to(headers / "usr" / "lib" / f"linux-kbuild-{version}" / name)
    print("  building the samples of mediated devices", flush=True)
    _run("make", "-C", tree, f"M={build}", "modules")
    target.mkdir(exist_ok=True)
    for name in SAMPLES:
        shutil.copy(build / f"{name}.ko", target)
    _run("depmod", "-b", folder, release)
    done.touch()
    return True


def qemu() -> tuple[list[str], bool]:
    """The newest QEMU that the distribution has for this release, as the beginning of a command, and whether it emulates a
    network card with virtual functions; the one of its backports where this host's own does not."""
    own = shutil.which("qemu-system-x86_64")
    assert own is not None
    if "igb" in _run(own, "-device", "help"):
        return [own], True
    root = CACHE / "qemu-backports"
    try:
        apt, suite = _backports()
        for package in ("qemu-system-x86", "qemu-system-common", "qemu-system-data"):
            _unpack(package, root, apt=apt, suite=suite)
        for package in ("seabios", "ipxe-qemu"):
            _unpack(package, root)
        command = [str(root / "usr/bin/qemu-system-x86_64"), "-L", str(root / "usr/share/qemu"),
                   "-L", str(root / "usr/share/seabios"), "-L", str(root / "usr/lib/ipxe/qemu")]
        _run(*command, "-version")
    except Missing as error:
        print(f"  no network card with virtual functions: {error}", flush=True)
        return [own], False
    return command, True


def _backports() -> tuple[dict[str, str], str]:
    """An apt of its own that sees the backports; this host's is left as it is."""
    told = _run("apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE) $(ORIGIN)", "Created-By: Packages")
    release = re.search(r"^VERSION_CODENAME=(\S+)$", Path("/etc/os-release").read_text(), re.MULTILINE)
    if release is None:
        raise Missing("this is no Debian release that has backports")
    suite = f"{release[1]}-backports"
    where = next((line.split()[0] for line in told.splitlines() if line.split()[1:] == [release[1], "Debian"]), None)
    if where is None:
        raise Missing(f"apt has no archive of Debian {release[1]}")
    folder = CACHE / "apt"
    for name in ("state/lists/partial", "cache/archives/partial", "etc"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "etc" / "sources.list").write_text(
        f"deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] {where} {suite} main\n")
    (folder / "apt.conf").write_text(
        f'Dir::State "{folder}/state";\nDir::State::status "/var/lib/dpkg/status";\nDir::Cache "{folder}/cache";\n'
        f'Dir::Etc::sourcelist "{folder}/etc/sources.list";\nDir::Etc::sourceparts "-";\n'
        + ('APT::Sandbox::User "root";\n' if os.geteuid() == 0 else ""))
    apt = {"APT_CONFIG": str(folder / "apt.conf")}
    if not any((folder / "state" / "lists").glob("*Packages*")):
        _run("apt-get", "update", "-qq", "-o", "Acquire::Retries=3", env=apt)
    return apt, suite


def initrd(release: str, folder: Path, init: str, target: Path) -> None:
    """An initial filesystem: busybox, the drivers that reach the root filesystem, and `init`."""
    modules = folder / "lib" / "modules" / release
    needs = {}
    for line in (modules / "modules.dep").read_text().splitlines():
        path, _, others = line.partition(":")
        needs[Path(path).name.split(".")[0].replace("-", "_")] = [*reversed(others.split()), path]
    order = dict.fromkeys(path for driver in DRIVERS for path in needs[driver])
    root = target.with_suffix(".root")
    shutil.rmtree(root, ignore_errors=True)
    for name in ("bin", "proc", "sys", "dev", "lower", "upper", "new", "modules"):
        (root / name).mkdir(parents=True)
    busybox = shutil.which("busybox")
    assert busybox is not None
    shutil.copy(busybox, root / "bin" / "busybox")
    for path in order:
        shutil.copy(modules / path, root / "modules")
    (root / "modules" / "order").write_text("".join(f"{Path(path).name}\n" for path in order))
    (root / "init").write_text(init)
    (root / "init").chmod(0o755)
    names = "\n".join(str(path.relative_to(root)) for path in sorted(root.rglob("*")))
    packed = subprocess.run(["cpio", "-o", "-H", "newc", "--quiet"], cwd=root, input=names.encode(), check=True,
                            capture_output=True).stdout
    target.write_bytes(gzip.compress(packed, 1))
    shutil.rmtree(root)

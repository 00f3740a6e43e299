"""A real S3 server on loopback: the gateway of a Ceph cluster of one process each, in memory, behind injected faults.

Needs `ceph-mon`, `ceph-osd`, `ceph-common` and `radosgw`, as Debian has them; starts in about ten seconds and takes
about 300 MB. The gateway checks signatures and conditions itself, so no fault can hide a condition from it.
"""

import shutil
import socket
import subprocess
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Self

import boto3

from tests.s3_server import SECRET, FaultyServer, environment
from tests.stores.servers import Proxy, free_port

PROGRAMS = ("ceph", "ceph-mon", "ceph-osd", "ceph-authtool", "monmaptool", "radosgw", "radosgw-admin")
ACCESS = {
    "mon.": {"mon": "allow *"},
    "client.admin": {"mon": "allow *", "osd": "allow *"},
    "client.rgw": {"mon": "allow rw", "osd": "allow rwx"},
    "osd.0": {"mon": "allow profile osd", "osd": "allow *"},
}

SETTINGS = """\
[global]
fsid = {cluster}
mon host = [v2:127.0.0.1:{monitor},v1:127.0.0.1:{old_monitor}]
mon initial members = a
mon allow pool size one = true
mon data avail crit = 0
auth allow insecure global id reclaim = false
keyring = {folder}/keyring
osd pool default size = 1
osd pool default pg num = 1
osd pool default pg autoscale mode = off
osd crush chooseleaf type = 0
public addr = 127.0.0.1
cluster addr = 127.0.0.1
run dir = {folder}
admin socket = {folder}/$name.asok
pid file = {folder}/$name.pid
log file = {folder}/$name.log
[mon.a]
mon data = {folder}/mon
[osd.0]
osd data = {folder}/osd
osd objectstore = memstore
memstore device bytes = 4294967296
[client.rgw]
rgw frontends = beast endpoint=127.0.0.1:{gateway}
rgw data = {folder}/rgw
"""


def why_no_ceph() -> str:
    """Returns why Ceph cannot run here; "" if it can."""
    missing = [name for name in PROGRAMS if not shutil.which(name)]
    return f"no {missing[0]} on this machine: apt-get install ceph-mon ceph-osd radosgw" if missing else ""


class Ceph(FaultyServer):
    """The gateway, with the bucket `sluice`.

    Args:
        folder: an empty folder for the state and the logs of the cluster.
    """

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self.folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []
        super().__init__(Proxy(self.port))
        self.environment = environment(self.url)

    def __enter__(self) -> Self:
        cluster, osd = str(uuid.uuid4()), str(uuid.uuid4())
        ports = {"monitor": free_port(), "old_monitor": free_port(), "gateway": self.port}
        (self.folder / "ceph.conf").write_text(SETTINGS.format(cluster=cluster, folder=self.folder, **ports))
        for name in ("mon", "osd", "rgw"):
            (self.folder / name).mkdir()
        try:
            self._start_monitor(cluster, f"[v2:127.0.0.1:{ports['monitor']},v1:127.0.0.1:{ports['old_monitor']}]")
            self._run("ceph", "osd", "new", osd, "0")
            self._run("ceph-osd", "-i", "0", "--mkfs", "--osd-uuid", osd)
            self._start("ceph-osd", "-i", "0")
            self._start("radosgw", "-n", "client.rgw")
            keys = ("--access-key", self.environment["AWS_ACCESS_KEY_ID"], "--secret-key", SECRET)
            self._run("radosgw-admin", "user", "create", "--uid", "sluice", "--display-name", "sluice", *keys)
            self._until(lambda: socket.create_connection(("127.0.0.1", self.port), timeout=1).close())
            super().__enter__()
            self._make_bucket()
        except BaseException:
            self._kill()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self._kill()

    def _start_monitor(self, cluster: str, addresses: str) -> None:
        keyring, monitors = self.folder / "keyring", self.folder / "monmap"
        self._run("ceph-authtool", "--create-keyring", keyring)
        for name, rights in ACCESS.items():
            caps = [word for one in rights.items() for word in ("--cap", *one)]
            self._run("ceph-authtool", keyring, "--gen-key", "-n", name, *caps)
        self._run("monmaptool", "--create", "--fsid", cluster, "--addv", "a", addresses, monitors)
        self._run("ceph-mon", "--mkfs", "-i", "a", "--monmap", monitors, "--keyring", keyring)
        self._start("ceph-mon", "-i", "a")

    def _make_bucket(self) -> None:
        with_keys = {"aws_access_key_id": self.environment["AWS_ACCESS_KEY_ID"], "aws_secret_access_key": SECRET}
        client = boto3.client("s3", endpoint_url=self.url, region_name="us-east-1", **with_keys)
        self._until(lambda: client.create_bucket(Bucket="sluice"))

    def _run(self, program: str, *words: object) -> None:
        command = [program, *(str(word) for word in words), "--conf", str(self.folder / "ceph.conf")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, f"{command}: {done.stderr}"

    def _start(self, program: str, *words: str) -> None:
        command = [program, *words, "--foreground", "--conf", str(self.folder / "ceph.conf")]
        self._processes.append(
            subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        )

    def _until(self, works: Callable[[], object]) -> None:
        deadline = time.monotonic() + 120
        while True:
            try:
                works()
                return
            except Exception:
                if time.monotonic() > deadline or any(one.poll() is not None for one in self._processes):
                    raise
                time.sleep(0.2)

    def _kill(self) -> None:
        for process in reversed(self._processes):
            process.kill()
            process.wait()

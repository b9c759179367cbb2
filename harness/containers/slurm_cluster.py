"""A Slurm cluster in containers, of Debian's packages: a head and two nodes of four GPUs each.

The head runs munge, MariaDB, slurmdbd and slurmctld, and users log in there; nodes run slurmd. GPUs
are null devices with the names of NVIDIA's, so that Slurm counts and binds them (it sets
CUDA_VISIBLE_DEVICES) and no program can compute on them. Processes are tracked without cgroups, so
that nothing keeps a task from devices and cores that are not its own.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from subprocess import CompletedProcess

from harness.containers.debian import image
from harness.containers.hosts import NONE, ROOT, Host, hosts
from harness.service.service_harness import wait_until

PACKAGES = (
    "curl", "mariadb-server", "munge", "procps", "slurm-client", "slurm-wlm-mysql-plugin",
    "slurmctld", "slurmd", "slurmdbd",
)  # fmt: skip
NODES = {"node1": "v100", "node2": "p100"}
"""The nodes, each with the type of its GPUs."""
FILTER = ROOT / "deploy" / "slurm" / "cli_filter.lua"
USER, UID = "alice", 1000
START_S = 90.0
JOB_S = 500.0
"""Patience: a job imports torch on all ranks, on as many cores as this machine has."""

SLURM_CONF = """\
ClusterName=shardwise
SlurmctldHost=head
SlurmUser=root
AuthType=auth/munge
StateSaveLocation=/var/lib/slurmctld
SlurmdSpoolDir=/var/lib/slurmd
SlurmctldLogFile=/var/log/slurmctld.log
SlurmdLogFile=/var/log/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
ReturnToService=2
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
GresTypes=gpu
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=head
AccountingStorageTRES=gres/gpu
AccountingStoreFlags=job_comment
JobAcctGatherType=jobacct_gather/linux
SchedulerParameters=bf_interval=1,sched_interval=1,batch_sched_delay=0
CliFilterPlugins=cli_filter/lua
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=60 State=UP
"""
NODE_CONF = "NodeName={name} CPUs=8 RealMemory=4000 Gres=gpu:{type}:4"
GRES_CONF = "NodeName={name} Name=gpu Type={type} File=/dev/nvidia[0-3]"
DBD_CONF = """\
AuthType=auth/munge
DbdHost=head
SlurmUser=root
StorageType=accounting_storage/mysql
StorageUser=slurm
StoragePass=slurm
StorageLoc=slurm_acct_db
LogFile=/var/log/slurmdbd.log
"""

PREPARE = """\
chmod 755 /root
mkdir -p /run/munge /var/lib/slurmctld /var/lib/slurmd
echo shardwise-tests-key-of-munge-0123456789 > /etc/munge/munge.key
chown munge: /run/munge /etc/munge/munge.key
chmod 400 /etc/munge/munge.key
"""
"""Users read what is mounted under /root; all hosts share munge's key."""


class SlurmCluster:
    """Commands of a user, who is logged in on the head and whose home all hosts see."""

    def __init__(self, machines: dict[str, Host], gateway: str, home: Path) -> None:
        self.head = machines["head"]
        self.nodes = [machines[name] for name in NODES]
        self.gateway = gateway
        self.home = home

    def try_run(
        self, *command: str, variables: Mapping[str, str] = NONE, given: str | None = None
    ) -> CompletedProcess[str]:
        """Runs a user's command on the head, in the home; returns how it ended."""
        path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
        own = {"HOME": str(self.home), "PYTHONPATH": str(ROOT), "PATH": path, **variables}
        return self.head.try_run(
            *command, user=USER, folder=str(self.home), variables=own, given=given
        )

    def run(self, *command: str, variables: Mapping[str, str] = NONE) -> str:
        """Returns what a user's command prints. Raises AssertionError if it fails."""
        done = self.try_run(*command, variables=variables)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def script(self, name: str, text: str) -> str:
        """Writes a script into the home; returns its name."""
        (self.home / name).write_text(text)
        (self.home / name).chmod(0o755)
        return name

    def job(self, number: str) -> dict[str, str]:
        """Returns what `scontrol` shows of a job (a component is `7+1`)."""
        words = self.run("scontrol", "--oneliner", "show", "job", number).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def ended(self, number: str, within_s: float = JOB_S) -> str:
        """Returns the state of a job once it has ended."""

        def state() -> str | None:
            found = self.job(number)["JobState"]
            return None if found in ("PENDING", "RUNNING", "COMPLETING") else found

        ended: str = wait_until(state, f"job {number} has ended", within_s)
        return ended

    def accounted(self, number: str, *fields: str) -> list[str]:
        """Returns fields of a job's record in the accounting database, once it has ended there."""

        def record() -> list[str] | None:
            text = self.run(
                "sacct", "--noheader", "--parsable2", "--allocations", "--jobs", number,
                "--format", ",".join(("State", "ReqTRES", *fields)),
            )  # fmt: skip
            # A job's start is recorded later than its submission, at times after its end.
            state, tres, *wanted = (text.splitlines() or ["|"])[0].split("|")
            return wanted if tres and state not in ("PENDING", "RUNNING") else None

        row: list[str] = wait_until(record, f"job {number} is accounted")
        return row

    def _configure(self, host: Host) -> None:
        nodes = [NODE_CONF.format(name=name, type=kind) for name, kind in NODES.items()]
        gpus = [GRES_CONF.format(name=name, type=kind) for name, kind in NODES.items()]
        host.write("/etc/slurm/slurm.conf", SLURM_CONF.format(nodes="\n".join(nodes)))
        host.write("/etc/slurm/gres.conf", "\n".join(["AutoDetect=off", *gpus, ""]))
        host.write("/etc/slurm/cli_filter.lua", FILTER.read_text())

    def start(self) -> None:
        """Starts all daemons; returns once both nodes are idle."""
        for host in (self.head, *self.nodes):
            self._configure(host)
            add = f"useradd --uid {UID} --no-create-home --home-dir {self.home} {USER}"
            host.run("sh", "-c", f"{add}; {PREPARE}")
            host.run("munged", user="munge")
        self._start_accounting()
        self.head.run("slurmctld")
        for node in self.nodes:
            node.run("sh", "-c", "for i in 0 1 2 3; do mknod -m 666 /dev/nvidia$i c 1 3; done")
            node.run("slurmd", "-N", node.name)
        wait_until(
            lambda: self.run("sinfo", "--noheader", "--format", "%T %D").split() == ["idle", "2"],
            "both nodes are idle", START_S,
        )  # fmt: skip

    def _start_accounting(self) -> None:
        head = self.head
        head.write("/etc/slurm/slurmdbd.conf", DBD_CONF, "600")
        head.run("sh", "-c", "mkdir -p /run/mysqld; chown mysql: /run/mysqld; "
                 "mariadbd-safe --skip-networking --no-watch >/dev/null 2>&1")  # fmt: skip
        wait_until(
            lambda: head.try_run("mariadb-admin", "ping").returncode == 0, "MariaDB", START_S
        )
        head.run("mariadb", "--execute", "CREATE DATABASE slurm_acct_db; GRANT ALL ON "
                 "slurm_acct_db.* TO slurm@localhost IDENTIFIED BY 'slurm'")  # fmt: skip
        head.run("slurmdbd")
        account = f"sacctmgr -i add account lab && sacctmgr -i add user {USER} account=lab"
        wait_until(
            lambda: head.try_run("sh", "-c", f"sacctmgr -i add cluster shardwise && {account}")
            .returncode == 0,
            "slurmdbd", START_S,
        )  # fmt: skip


@contextmanager
def running_slurm(home: Path) -> Iterator[SlurmCluster]:
    """Yields a cluster whose daemons run; skips the test where there is no container engine."""
    tag = image("slurm", *PACKAGES)
    os.chown(home, UID, UID)
    with hosts(tag, ("head", *NODES), home) as (machines, gateway):
        cluster = SlurmCluster(machines, gateway, home)
        cluster.start()
        yield cluster

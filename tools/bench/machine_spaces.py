"""Machines in one: network namespaces with host names, an sshd and a core each, and between them a
network of a rate that is set at both ends of each wire. Two have one wire. More have a wire each to
a switch, so that one may also receive from all others no faster than at that rate. Nothing delays
what is sent: where tc has no netem, it cannot.

Needs root and Debian's iproute2, openssh-server and openmpi-bin. Everything it makes carries its
process number, and is removed in the end. Standard library only."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

FRAME_BYTES = 9000


def must(words, **more):
    """Runs a command to its end; its output, or this program's end with it."""
    done = subprocess.run([str(w) for w in words], stdin=subprocess.DEVNULL, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **more)
    if done.returncode != 0:
        sys.exit(f"{Path(sys.argv[0]).stem}: {' '.join(map(str, words))} ended with "
                 f"{done.returncode}:\n{done.stdout}")
    return done.stdout


class Machines:
    """Namespaces and what runs in them. Commands of node `i` have its name, its network,
    and one core alone: core i, where there are as many."""

    def __init__(self, folder, program, count=2):
        self.folder = Path(folder)
        self.program = Path(program).absolute()
        self.nodes = [f"node{i + 1:02}" for i in range(count)]
        self.spaces = [f"pagoda{os.getpid()}-{i}" for i in range(count)]
        self.switch = f"pagoda{os.getpid()}-switch"
        self.ends = [(space, "eth0") for space in self.spaces]  # they send into wires
        self.servers = []

    def inside(self, node, words):
        """The words of a command, as node `node` would run them."""
        text = f"hostname {self.nodes[node]} && exec \"$@\""
        return ["ip", "netns", "exec", self.spaces[node], "unshare", "--uts", "taskset", "-c",
                str(node % os.cpu_count()), "sh", "-c", text, "sh", *map(str, words)]

    def start(self):
        hosts = "127.0.0.1 localhost\n" + "".join(
            f"10.97.0.{i + 1} {name}\n" for i, name in enumerate(self.nodes))
        for space in self.spaces:
            own = Path("/etc/netns", space)
            own.mkdir(parents=True)
            (own / "hosts").write_text(hosts)
            must(["ip", "netns", "add", space])
        if len(self.spaces) == 2:
            self._add_wire(self.spaces[0], self.spaces[1], "eth0")
        else:
            self._add_switch()
        for i, space in enumerate(self.spaces):
            must(["ip", "-n", space, "address", "add", f"10.97.0.{i + 1}/24", "dev", "eth0"])
            must(["ip", "-n", space, "link", "set", "lo", "up"])
        for space, device in self.ends:
            must(["ip", "-n", space, "link", "set", device, "up"])
        (self.folder / "bin").mkdir()
        (self.folder / "bin" / self.program.name).symlink_to(self.program)
        self._start_servers()

    @staticmethod
    def _add_wire(space, peer, name):
        must(["ip", "link", "add", "eth0", "netns", space, "mtu", FRAME_BYTES, "type", "veth",
              "peer", "name", name, "netns", peer, "mtu", FRAME_BYTES])

    def _add_switch(self):
        must(["ip", "netns", "add", self.switch])
        must(["ip", "-n", self.switch, "link", "add", "switch", "type", "bridge"])
        for i, space in enumerate(self.spaces):
            self._add_wire(space, self.switch, f"port{i}")
            must(["ip", "-n", self.switch, "link", "set", f"port{i}", "master", "switch"])
            self.ends.append((self.switch, f"port{i}"))
        must(["ip", "-n", self.switch, "link", "set", "switch", "up"])

    def _start_servers(self):
        keys = self.folder / "keys"
        keys.mkdir()
        for name in ("host", "user"):
            must(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", keys / name])
        shutil.copy(keys / "user.pub", keys / "authorized")
        (keys / "sshd").write_text(
            f"HostKey {keys}/host\nAuthorizedKeysFile {keys}/authorized\nStrictModes no\n"
            f"PermitRootLogin yes\nPasswordAuthentication no\nUsePAM no\nPidFile none\n"
            f"SetEnv PATH={self.path()}\n")
        os.makedirs("/run/sshd", exist_ok=True)
        for i in range(len(self.nodes)):
            self.servers.append(subprocess.Popen(
                self.inside(i, ["/usr/sbin/sshd", "-D", "-e", "-f", keys / "sshd"]),
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE))
        deadline = time.monotonic() + 20
        for name in self.nodes[1:]:
            self._wait_for(name, deadline)

    def _wait_for(self, name, deadline):
        words = self.inside(0, ["ssh", *self.ssh_words().split(), name, "hostname"])
        while True:
            asked = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True)
            if asked.stdout.strip() == name:
                return
            if time.monotonic() > deadline:
                sys.exit(f"{Path(sys.argv[0]).stem}: no ssh to {name}: {asked.stderr}")
            time.sleep(0.2)

    def path(self):
        return f"{self.folder / 'bin'}:{os.environ['PATH']}"

    def ssh_words(self):
        return (f"-i {self.folder}/keys/user -o StrictHostKeyChecking=no "
                f"-o UserKnownHostsFile=/dev/null -o LogLevel=ERROR")

    def set_rate(self, mbit, burst="128kb"):
        """What each end sends, but for so much that it sends at once after a pause."""
        for space, device in self.ends:
            must(["tc", "-n", space, "qdisc", "replace", "dev", device, "root", "tbf", "rate",
                  f"{mbit}mbit", "burst", burst, "latency", "100ms"])

    def dropped(self):
        """Packets that found no room before a wire so far."""
        shown = [json.loads(must(["tc", "-n", space, "-s", "-j", "qdisc", "show", "dev", device]))
                 for space, device in self.ends]
        return sum(queue["drops"] for queues in shown for queue in queues)

    def of_mpirun(self, words, each=1):
        """The words of a command that starts processes, so many on each node, from the first, and
        the folder and variables that it wants, as subprocess.run takes them. Where a cluster has
        its ssh keys and its network in place, options of Open MPI are not needed for them."""
        own = {**os.environ, "PATH": self.path(), "OMPI_ALLOW_RUN_AS_ROOT": "1",
               "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_plm_rsh_args": self.ssh_words(),
               "OMPI_MCA_odls_base_sigkill_timeout": "0",  # as launcher.py has it
               "OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self,tcp"}
        hosts = ",".join(f"{node}:{each}" for node in self.nodes)
        command = self.inside(0, ["mpirun", "-n", str(len(self.nodes) * each), "--host", hosts,
                                  "--map-by", f"ppr:{each}:node", "--bind-to", "none", *words])
        return command, {"cwd": self.folder, "env": own}

    def mpirun(self, words, each=1):
        """What such processes print, or this program's end with one of them."""
        command, more = self.of_mpirun(words, each)
        return must(command, **more)

    def sent_bytes(self):
        """What has left each node so far, as its network device counts it."""
        counted = [must(["ip", "netns", "exec", space, "cat",
                         "/sys/class/net/eth0/statistics/tx_bytes"]) for space in self.spaces]
        return [int(text) for text in counted]

    def stop(self):
        for server in self.servers:
            server.terminate()
            server.wait()
        for space in [*self.spaces, self.switch]:
            subprocess.run(["ip", "netns", "delete", space], stderr=subprocess.DEVNULL)
            shutil.rmtree(Path("/etc/netns", space), ignore_errors=True)


def lacks():
    """What this machine lacks for namespaces, or nothing."""
    missing = [p for p in ("ip", "tc", "ssh", "mpirun") if not shutil.which(p)]
    if not os.path.exists("/usr/sbin/sshd"):
        missing.append("sshd")
    if missing:
        return f"there is no {', '.join(missing)}"
    name = f"pagoda{os.getpid()}-try"
    made = os.geteuid() == 0 and subprocess.run(
        ["ip", "netns", "add", name], stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL).returncode == 0
    if not made:
        return "network namespaces may not be made"
    tried = [["ip", "-n", name, "link", "add", "eth0", "type", "veth", "peer", "name", "eth1"],
             ["tc", "-n", name, "qdisc", "replace", "dev", "eth0", "root", "tbf", "rate", "1mbit",
              "burst", "128kb", "latency", "100ms"], ["unshare", "--uts", "true"]]
    can = all(subprocess.run(words, capture_output=True, check=False).returncode == 0
              for words in tried)
    must(["ip", "netns", "delete", name])
    return "" if can else "network devices, their rates or host names may not be set"


@contextlib.contextmanager
def machines(program, count=2, directory=None):
    """Starts so many, with a folder in common, which end with the block."""
    with tempfile.TemporaryDirectory(dir=directory) as folder:
        made = Machines(folder, program, count)
        try:
            made.start()
            yield made
        finally:
            made.stop()

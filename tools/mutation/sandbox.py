"""Runs a program in namespaces of its own.

A mutant may call kill(-1, SIGKILL) or remove the wrong folder. In its own PID namespace it reaches only its own processes, and
all of these end with it. Its file system is read-only except for the work folder, /tmp and /dev/shm. Its network has only a
loopback interface, so other programs cannot disturb the tests either."""
import os
import resource
import shlex
import signal
import subprocess
import time

MEMORY = 8 << 30  # bytes of data that one process may have

# The first command is for root. The second works for other users if the system allows user namespaces.
NAMESPACES = (["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--net"],
              ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc", "--net"])


def limits():
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))


class Sandbox:
    def __init__(self, work):
        self.work = os.path.realpath(work)
        self.unshare = next((command for command in NAMESPACES if self.works(command)), None)

    def setup(self):
        """Returns the shell commands that run first in the new namespaces."""
        quoted = shlex.quote(self.work)
        commands = [f"mount --bind {quoted} {quoted}", "mount -t tmpfs tmpfs /dev/shm", "ip link set lo up"]
        # The tests' temporary files go to a /tmp of their own, unless the work folder itself is below /tmp.
        inside = self.work.startswith("/tmp/")
        commands.append("mount --bind /tmp /tmp" if inside else "mount -t tmpfs tmpfs /tmp")
        return " && ".join([*commands, "mount -o remount,bind,ro /"])

    def works(self, unshare):
        try:
            return subprocess.run([*unshare, "sh", "-c", self.setup()], stdin=subprocess.DEVNULL, capture_output=True,
                                  timeout=30, check=False).returncode == 0
        except OSError:
            return False

    def start(self, command, folder, environment, log):
        # The shell stays the first process of the namespace, because signals have other effects on that process.
        script = f"{self.setup()} && cd {shlex.quote(folder)} || exit 125; {shlex.join(command)}; exit $?"
        with open(log, "w") as output:
            return subprocess.Popen([*self.unshare, "sh", "-c", script], env={**os.environ, **environment},
                                    stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                                    start_new_session=True, preexec_fn=limits)

    def run(self, command, folder, environment, log, limit, stopped=lambda: False):
        """Returns the exit status, "timeout" after `limit` seconds, or None if `stopped()` became true. No process of
        the program is left running."""
        process = self.start(command, folder, environment, log)
        end = time.monotonic() + limit
        try:
            while True:
                try:
                    return process.wait(0.05)
                except subprocess.TimeoutExpired:
                    if stopped():
                        return None
                    if time.monotonic() > end:
                        return "timeout"
        finally:
            if process.poll() is None:  # the death of unshare kills the first process of the namespace, and so all others
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

"""Running programs: output as it comes, every wait bounded, and nothing left behind."""
import os
import queue
import signal
import subprocess
import threading
import time


def stop(process):
    """Ends the program and all that it started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


class Run:
    """A program that has ended: `status` (None: it was stopped at its limit), `text`, `seconds`."""

    def __init__(self, status, text, seconds):
        self.status, self.text, self.seconds = status, text, seconds

    @property
    def ok(self):
        return self.status == 0

    def tail(self, lines=12):
        """The end of its output, for a note."""
        why = "stopped at its time limit; " if self.status is None else f"exit status {self.status}; "
        return why + " / ".join(line.strip() for line in self.text.splitlines()[-lines:] if line.strip())


def run(command, limit, folder=None, environment=None, log=None, on_line=None, echo=False, text=None):
    """Runs it for at most `limit` seconds. Each line goes to `log` and to `on_line`."""
    start = time.monotonic()
    lines = []
    try:
        process = subprocess.Popen(command, cwd=folder, env={**os.environ, **(environment or {})}, text=True,
                                   errors="replace", stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, start_new_session=True)
    except OSError as error:
        return Run(127, str(error), 0.0)
    expired = threading.Event()

    def expire():
        expired.set()
        stop(process)

    timer = threading.Timer(max(limit, 0.1), expire)
    timer.start()
    writer = open(log, "w") if log else None
    try:
        try:
            process.stdin.write(text or "")
            process.stdin.close()
        except BrokenPipeError:
            pass
        for line in process.stdout:  # ends when all that has it has ended
            lines.append(line)
            if writer:
                writer.write(line)
                writer.flush()
            if echo:
                print(line, end="", flush=True)
            if on_line:
                on_line(line.rstrip("\n"))
        status = process.wait()
    finally:
        timer.cancel()
        stop(process)
        process.stdout.close()
        if writer:
            writer.close()
    return Run(None if expired.is_set() else status, "".join(lines), time.monotonic() - start)


class Dialogue:
    """A program that answers each line with a line."""

    def __init__(self, command, environment=None):
        self.process = subprocess.Popen(command, env={**os.environ, **(environment or {})}, text=True, bufsize=1,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
        self.lines = queue.Queue()
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        for line in self.process.stdout:
            self.lines.put(line.rstrip("\n"))
        self.lines.put(None)

    def ask(self, line, limit):
        """Its answer; `failed ...` if it ends or does not answer in time, and then it is no more."""
        try:
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
            answer = self.lines.get(timeout=max(limit, 0.1))
        except queue.Empty:
            self.close()
            return "failed no answer within its time"
        except (BrokenPipeError, ValueError):
            answer = None
        if answer is None:
            self.close()
            return f"failed the program ended with status {self.process.returncode}"
        return answer

    @property
    def alive(self):
        return self.process.poll() is None

    def close(self):
        stop(self.process)
        self.reader.join()
        self.process.stdout.close()
        try:
            self.process.stdin.close()
        except BrokenPipeError:
            pass

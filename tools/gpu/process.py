"""Runs other programs. Their output is read line by line. Every wait has a time limit, and no process is left
running."""
import math
import os
import queue
import signal
import subprocess
import threading
import time

GRACE = 10.0  # the longest wait in seconds for the end of a killed process
running = set()  # the programs that have been started and not yet stopped
changing = threading.Lock()  # held while `running` changes


def start(command, **options):
    """Starts a program as the leader of a process group of its own."""
    with changing:
        process = subprocess.Popen(command, text=True, errors="replace", stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                   start_new_session=True, **options)
        running.add(process)
    return process


def kill(processes):
    """Kills the programs and their process groups. If a process hangs in a driver and does not end, it is abandoned."""
    for process in processes:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    until = time.monotonic() + GRACE
    for process in processes:
        try:
            process.wait(max(until - time.monotonic(), 0))
        except subprocess.TimeoutExpired:
            pass


def stop(process):
    kill([process])
    with changing:
        running.discard(process)


def end_on_signals():
    """From now on, SIGTERM, SIGINT and SIGHUP kill all programs and end this process with status 128 + the signal's number. A
    thread of its own does this, because the main thread may be starting a program, or waiting."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer)  # receives the numbers of signals that have a handler
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # nohup ignores SIGHUP
            signal.signal(number, lambda *_: None)

    def end():
        number = os.read(reader, 1)[0]
        # Never released: no program starts any more, and start() and stop() do not return, so that none that is killed here
        # counts as one that has failed.
        changing.acquire(timeout=GRACE)
        kill(list(running))
        os._exit(128 + number)

    threading.Thread(target=end, daemon=True).start()


def lines_of(stream):
    """Returns a queue to which a thread adds each line of the stream, and None after the last line."""
    lines = queue.Queue()

    def read():
        with stream:
            for line in stream:
                lines.put(line)
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    return lines


class Run:
    """The result of a program that has ended. `status` is its exit status, or None if it was killed at its time
    limit."""

    def __init__(self, status, text, seconds):
        self.status, self.text, self.seconds = status, text, seconds

    @property
    def ok(self):
        return self.status == 0

    def tail(self, lines=12):
        """Returns the exit status and the last lines of the output, as a note for the report."""
        why = "stopped at its time limit; " if self.status is None else f"exit status {self.status}; "
        return why + " / ".join(line.strip() for line in self.text.splitlines()[-lines:] if line.strip())


def no_links(path, flags):
    """An opener that fails if `path` is a symbolic link: its name is known in advance, so someone may have planted it."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)


def run(command, limit, folder=None, environment=None, log=None, on_line=None, text=None, stderr=subprocess.STDOUT):
    """Runs the command for at most `limit` seconds. `text` is its input; each line of output goes to `log` and
    `on_line`."""
    begun = time.monotonic()
    lines = []
    with open(log or os.devnull, "w", opener=no_links) as writer:
        try:
            process = start(command, cwd=folder, env={**os.environ, **(environment or {})}, stderr=stderr)
        except OSError as error:
            return Run(127, str(error), 0.0)
        expired = False
        end = begun + max(limit, 0.1)
        found = lines_of(process.stdout)
        try:
            process.stdin.write(text or "")
            process.stdin.close()
        except BrokenPipeError:
            pass
        try:
            while True:  # loops until all processes that hold the output pipe have ended, or until the time is over
                try:
                    line = found.get(timeout=max(end - time.monotonic(), 0.01))
                except queue.Empty:
                    if expired:
                        break  # a process outside of the killed group still holds the output pipe
                    expired = True
                    stop(process)
                    end = time.monotonic() + GRACE
                    continue
                if line is None:
                    break
                lines.append(line)
                writer.write(line)
                writer.flush()
                if on_line:
                    on_line(line.rstrip("\n"))
            if not expired:
                process.wait(max(end - time.monotonic(), GRACE))
        except subprocess.TimeoutExpired:
            expired = True
        finally:
            stop(process)
    return Run(None if expired else process.returncode, "".join(lines), time.monotonic() - begun)


NO_ANSWER = "no answer within its time"


class Dialogue:
    """A running program that answers each line of input with one line of output."""

    def __init__(self, command, environment=None):
        self.process = start(command, env={**os.environ, **(environment or {})}, bufsize=1)
        self.closed = False
        self.lines = lines_of(self.process.stdout)

    def ask(self, line, limit):
        """Sends a line and returns the answer. If the program ends, or does not answer within `limit` seconds, the
        program is killed and the answer is `failed` with the reason."""
        if self.closed:
            return "failed the program was stopped"
        try:
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
            answer = self.lines.get(timeout=max(limit, 0.1))
        except queue.Empty:
            self.close()
            return "failed " + NO_ANSWER
        except (BrokenPipeError, ValueError):
            answer = None
        if answer is None:
            self.close()
            return f"failed the program ended with status {self.process.returncode}"
        return answer.rstrip("\n")

    @property
    def alive(self):
        return not self.closed and self.process.poll() is None

    def close(self):
        self.closed = True
        stop(self.process)
        try:
            self.process.stdin.close()
        except BrokenPipeError:
            pass


class Program:
    """A Dialogue that starts its program at the first question, and starts it again after the program has ended. No answer
    is waited for longer than the seconds that `left` returns, or than `patience` times the limit of the question.

    After `most_silent` consecutive starts without a good answer, the program is not started again."""

    def __init__(self, command, left=lambda: math.inf, environment=None, most_silent=3, patience=1):
        self.command, self.left, self.environment, self.most_silent = command, left, environment, most_silent
        self.patience = patience
        self.dialogue, self.silent, self.last = None, 0, ""

    @property
    def given_up(self):
        return self.silent >= self.most_silent

    def begin(self):
        """Starts the program unless it runs, so that it loads while others work. Returns True if it runs."""
        if self.dialogue and self.dialogue.alive:
            return True
        if self.given_up:
            return False
        try:
            self.dialogue = Dialogue(self.command, self.environment)
            self.silent += 1
            return True
        except OSError as error:
            self.silent, self.last = self.most_silent, f"failed {error}"
            return False

    def ask(self, line, limit):
        if not self.begin():
            return self.last
        answer = self.dialogue.ask(line, min(self.patience * limit, self.left()))
        if answer.startswith("failed"):
            self.last = answer
        else:
            self.silent = 0
        return answer

    def close(self):
        if self.dialogue:
            self.dialogue.close()
        self.dialogue = None

"""Drives headless Chromium by the DevTools protocol over a pipe. Needs the standard library only."""
import json
import os
import shutil
import subprocess
import tempfile
import time


def find():
    """The path of Chromium, or None."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Browser:
    """One page. `requests` are the addresses that it asked for, `errors` the exceptions and messages of its script."""

    def __init__(self, limit_s=60):
        self.deadline = time.monotonic() + limit_s
        self.profile = tempfile.mkdtemp(prefix="tapestry-browser-")
        to_browser, self.out = os.pipe()
        self.inp, from_browser = os.pipe()
        # The browser reads commands from file descriptor 3 and writes to 4.
        command = [find(), "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
                   "--disable-background-networking", "--disable-extensions", "--hide-scrollbars", "--remote-debugging-pipe",
                   "--user-data-dir=" + self.profile, "about:blank"]
        wrapper = ["/bin/bash", "-c", 'exec 3<&%d 4>&%d; exec "$@"' % (to_browser, from_browser), "bash"]
        self.process = subprocess.Popen(wrapper + command, pass_fds=(to_browser, from_browser), stdout=subprocess.DEVNULL,
                                        stderr=subprocess.DEVNULL, start_new_session=True)
        os.close(to_browser)
        os.close(from_browser)
        os.set_blocking(self.inp, False)
        self.buffer, self.number, self.events = b"", 0, []
        self.requests, self.errors = [], []
        self.session = None
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log", "DOM"):
            self.send(domain + ".enable")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.profile, ignore_errors=True)

    def _receive(self):
        while b"\0" not in self.buffer:
            if time.monotonic() > self.deadline:
                raise TimeoutError("the browser did not answer in time")
            try:
                data = os.read(self.inp, 1 << 20)
            except BlockingIOError:
                time.sleep(0.002)
                continue
            if not data:
                raise RuntimeError("the browser ended")
            self.buffer += data
        message, self.buffer = self.buffer.split(b"\0", 1)
        message = json.loads(message)
        method, parameters = message.get("method"), message.get("params", {})
        if method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            details = parameters["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description", details["text"]))
        elif method == "Log.entryAdded" and parameters["entry"]["level"] == "error":
            self.errors.append(parameters["entry"]["text"])
        elif method == "Page.javascriptDialogOpening":
            self.errors.append("the page opened a dialog")
            self.number += 1
        return message

    def send(self, method, **parameters):
        self.number += 1
        number = self.number
        message = {"id": number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self.out, data[:1 << 16]):]
        while True:
            answer = self._receive()
            if answer.get("id") == number:
                if "error" in answer:
                    raise RuntimeError(method + ": " + answer["error"]["message"])
                return answer["result"]

    def open(self, url):
        # A new address that differs after # only would not load the page anew.
        for address in ("about:blank", url):
            self.send("Page.navigate", url=address)
            while not self.run("document.readyState === 'complete' && location.href.startsWith(%s)" % json.dumps(address.split("#")[0])):
                time.sleep(0.005)

    def run(self, script):
        """The value of an expression of the page's script."""
        result = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise AssertionError(result["exceptionDetails"].get("exception", {}).get("description", "exception"))
        return result["result"].get("value")

    def size(self, width, height=900):
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def key(self, key, code, number):
        for kind in ("rawKeyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", type=kind, key=key, code=code, windowsVirtualKeyCode=number)

    def picture(self, path, height=0):
        import base64
        clip = {}
        if height:
            clip = {"captureBeyondViewport": True}
        with open(path, "wb") as file:
            file.write(base64.b64decode(self.send("Page.captureScreenshot", format="png", **clip)["data"]))

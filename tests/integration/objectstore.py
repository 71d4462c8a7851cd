"""A real S3 server in a process of its own, and an HTTP proxy before it that misbehaves as it is told."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import pathlib
import subprocess
import sys
import threading
import urllib.parse

_SERVER = """
import sys
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""
_SLOW_DOWN = b"""<?xml version="1.0" encoding="UTF-8"?>
<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"""
_DENIED = b"""<?xml version="1.0" encoding="UTF-8"?>
<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"""


@contextlib.contextmanager
def server():
    """Port of an S3 server, which ends with its standard input."""
    pipe, null = subprocess.PIPE, subprocess.DEVNULL  # it logs each request
    with subprocess.Popen([sys.executable, "-c", _SERVER], stdin=pipe, stdout=pipe, stderr=null) as process:
        try:
            yield int(process.stdout.readline())
        finally:
            process.stdin.close()
            process.kill()


class Proxy(http.server.ThreadingHTTPServer):
    """Forwards requests, unless `fault` says otherwise.

    `fault(method, path, number)` with the number of earlier requests of this method and path gives None, "slow" (503
    SlowDown), "cut" (half of the answer, then the connection is closed), "denied", or "error" (500).
    """

    daemon_threads = True

    def __init__(self, port):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.port = port
        self.lock = threading.Lock()
        self.reset()

    def reset(self):
        self.fault = lambda method, path, number: None
        self.seen = {}

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}"

    def count(self, method, part=""):
        return sum(number for (one, path), number in self.seen.items() if one == method and part in path)


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def do(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = urllib.parse.unquote(self.path)
        with self.server.lock:
            number = self.server.seen.get((self.command, path), 0)
            self.server.seen[self.command, path] = number + 1
        fault = self.server.fault(self.command, path, number)
        errors = {"slow": (503, _SLOW_DOWN), "denied": (403, _DENIED), "error": (500, b"")}
        if fault in errors:
            self.answer(*errors[fault], [("Content-Type", "application/xml")])
            return
        client = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=30)
        client.request(self.command, self.path, body, dict(self.headers))
        reply = client.getresponse()
        data = reply.read()
        headers = [one for one in reply.getheaders() if one[0].lower() not in ("transfer-encoding", "connection")]
        client.close()
        self.answer(reply.status, data, headers, is_cut=fault == "cut")

    def answer(self, status, data, headers, *, is_cut=False):
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() != "content-length":
                self.send_header(name, value)
        length = {name.lower(): value for name, value in headers}.get("content-length")
        self.send_header("Content-Length", length if self.command == "HEAD" and length else str(len(data)))
        self.end_headers()
        with contextlib.suppress(ConnectionError):
            self.wfile.write(data[: len(data) // 2] if is_cut else b"" if self.command == "HEAD" else data)
        if is_cut:
            self.close_connection = True

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = do  # noqa: N815 - as http.server calls them


@contextlib.contextmanager
def proxy(port):
    """A proxy before a server."""
    with Proxy(port) as one:
        thread = threading.Thread(target=one.serve_forever)
        thread.start()
        try:
            yield one
        finally:
            one.shutdown()
            thread.join()


def upload(client, bucket, folder, prefix=""):
    """Copy a folder's files to a bucket."""
    folder = pathlib.Path(folder)
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        key = f"{prefix}{path.relative_to(folder).as_posix()}"
        client.put_object(Bucket=bucket, Key=key, Body=path.read_bytes())

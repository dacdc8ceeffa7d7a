"""The destination: nginx on loopback, one port that answers and one that resets a connection in a hundred.

Both answer from memory and keep connections; both log the key, so that every request can be counted.
"""

import os
import re
import signal
import socket
import subprocess
import sys
import time

from measure import which

CONFIGURATION = """
worker_processes 1; worker_rlimit_nofile 16384; pid {folder}/pid; error_log {folder}/error.log crit; daemon on; {user}
events {{ worker_connections 8192; }}
http {{
  log_format key '$status $http_idempotency_key';
  keepalive_requests 10000000; keepalive_timeout 300s; default_type application/json; reset_timedout_connection on;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  split_clients "$request_id" $unlucky {{ 1% 1; * 0; }}
  access_log {folder}/clean.log key buffer=256k flush=1s;
  server {{ listen 127.0.0.1:{clean} backlog=4096; location / {{ return 200 '{{"id":"1"}}'; }} }}
  server {{
    listen 127.0.0.1:{unlucky} backlog=4096;
    access_log {folder}/unlucky.log key buffer=256k flush=1s;
    location / {{ if ($unlucky) {{ return 444; }} return 200 '{{"id":"1"}}'; }}
  }}
}}
"""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Sink:
    """Started when made, stopped by stop()."""

    def __init__(self):
        self.folder = os.path.join(os.environ["BENCH_DIR"], "sink")
        self.ports = {"clean": free_port(), "unlucky": free_port()}
        os.makedirs(self.folder, exist_ok=True)
        self.pid_file = os.path.join(self.folder, "pid")
        configuration = os.path.join(self.folder, "nginx.conf")
        user = "user root;" if os.getuid() == 0 else ""
        with open(configuration, "w", encoding="utf-8") as file:
            file.write(CONFIGURATION.format(folder=self.folder, user=user, **self.ports))
        for name in self.ports:
            open(self.log(name), "w", encoding="utf-8").close()
        started = subprocess.run(
            [which("nginx"), "-c", configuration, "-p", self.folder], capture_output=True, text=True, check=False)
        if started.returncode:
            sys.exit(f"error: the sink does not start: {started.stderr.strip()}")
        end = time.monotonic() + 10
        while not (os.path.exists(self.pid_file) and os.path.getsize(self.pid_file)):
            if time.monotonic() > end:
                sys.exit("error: the sink does not say its process id")
            time.sleep(0.02)

    def log(self, name):
        return os.path.join(self.folder, name + ".log")

    def pid(self):
        with open(self.pid_file, encoding="utf-8") as file:
            return int(file.read())

    def requests(self, name, prefix):
        """How often each key that begins so was seen, and how many of all were reset, once nothing more comes."""
        os.kill(self.pid(), signal.SIGUSR1)  # writes out what is buffered
        size, end = -1, time.monotonic() + 10
        while time.monotonic() < end and size != os.path.getsize(self.log(name)):
            size = os.path.getsize(self.log(name))
            time.sleep(1.3)
        seen, resets = {}, 0
        with open(self.log(name), encoding="utf-8") as file:
            for line in file:
                status, _, key = line.strip().partition(" ")
                if not re.fullmatch(r"\d+", status):
                    sys.exit(f"error: the sink's log is not understood: {line!r}")
                if key.startswith(prefix):
                    seen[key] = seen.get(key, 0) + 1
                    resets += status == "444"
        return seen, resets

    def stop(self):
        if os.path.exists(self.pid_file):
            os.kill(self.pid(), signal.SIGTERM)

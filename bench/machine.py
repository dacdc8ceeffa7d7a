"""What is measured on: one record."""

import os
import platform
import re
import subprocess

from measure import FULL, HERE, QUICK, Server, record


def output(*command):
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False, cwd=HERE).stdout.strip()
    except OSError:
        return ""


def first(path, pattern):
    try:
        with open(path, encoding="utf-8") as file:
            found = re.search(pattern, file.read(), re.M)
            return found.group(1).strip() if found else ""
    except OSError:
        return ""


def flush_us(server):
    """How long the disk takes for one flush of the method that the server uses."""
    text = output(os.path.join(server.bin, "pg_test_fsync"), "-s", "1", "-f", os.path.join(os.environ["BENCH_DIR"], "fsync.tmp"))
    found = re.search(r"fdatasync\s+[\d.]+ ops/sec\s+(\d+) usecs", text)
    return int(found.group(1)) if found else None


def main():
    server = Server("postgres")
    record(
        "machine", processors=os.cpu_count(), processor=first("/proc/cpuinfo", r"^model name\s*:\s*(.*)$"),
        memory_gb=round(int(first("/proc/meminfo", r"^MemTotal:\s*(\d+)") or 0) / 2**20, 1), kernel=platform.release(),
        system=first("/etc/os-release", r'^PRETTY_NAME="(.*)"$'), server=server.sql("SELECT version()"),
        rustc=output("rustc", "--version"), commit=output("git", "rev-parse", "--short=12", "HEAD"),
        changed=bool(output("git", "status", "--porcelain", "--", "..")), flush_us=flush_us(server),
        quick=QUICK, full=FULL)  # fmt: skip


if __name__ == "__main__":
    main()

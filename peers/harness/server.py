"""A throwaway PostgreSQL with the ledger preloaded, which can be killed."""

import os
import shutil
import signal
from pathlib import Path

import psycopg

from .ledger import Ledger
from .processes import Failed, Program, eventually, free_port, run

LEDGER_SETTINGS = """
shared_preload_libraries = 'command_ledger'
command_ledger.secrets_directory = '{secrets}'
command_ledger.max_sleep = '5s'
"""
SETTINGS = """
unix_socket_directories = '{directory}'
listen_addresses = ''
port = {port}
shared_buffers = '32MB'
lc_messages = 'C'
timezone = 'UTC'
"""


def children_of(parent: int) -> list[int]:
    """The pids whose parent this is."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
            except OSError:
                continue
            # pid (name) state ppid: the name may hold blanks and brackets.
            if int(stat.rpartition(")")[2].split()[1]) == parent:
                found.append(int(entry.name))
    return found


class Server:
    """One cluster in a directory of its own; without preload it is a peer's, and nobody kills it."""

    def __init__(self, programs: Path, directory: Path, preload: bool = True, copy_of: Path | None = None):
        self.programs, self.directory, self.port = programs, directory, free_port()
        self.data, self.secrets = directory / "data", directory / "secrets"
        self.secrets.mkdir(parents=True)
        if copy_of:
            shutil.copytree(copy_of, self.data)
            self.data.chmod(0o700)
        else:
            kind = ["-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "-N"]
            run([programs / "initdb", "-D", self.data, *kind], directory)
        with (self.data / "postgresql.conf").open("a") as settings:
            settings.write(SETTINGS.format(directory=directory, port=self.port))
            settings.write(LEDGER_SETTINGS.format(secrets=self.secrets) if preload else "fsync = off\n")
        self.start()

    def start(self) -> None:
        self.program = Program("postgres", [self.programs / "postgres", "-D", self.data], self.directory)
        eventually("PostgreSQL accepts connections", self.answers)

    def answers(self) -> bool:
        if self.program.ended():
            raise Failed(f"PostgreSQL ended while starting:\n{self.program.tail()}")
        try:
            psycopg.connect(self.conninfo("postgres")).close()
        except psycopg.OperationalError:
            return False
        return True

    def conninfo(self, database: str) -> str:
        return f"host={self.directory} port={self.port} user=postgres dbname={database}"

    def secret(self, name: str, value: str) -> None:
        (self.secrets / name).write_text(value)

    def database(self, name: str) -> None:
        with psycopg.connect(self.conninfo("postgres"), autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{name}"')

    def comment(self, database: str, text: str | None = None) -> str:
        """What is noted on a database; a text is noted first."""
        with psycopg.connect(self.conninfo(database), autocommit=True) as connection:
            if text is not None:
                connection.execute(f"COMMENT ON DATABASE \"{database}\" IS '{text}'")
            said = "SELECT shobj_description(oid, 'pg_database') FROM pg_database WHERE datname = %s"
            return connection.execute(said, (database,)).fetchone()[0]

    def ledger(self, database: str) -> Ledger:
        """A new database with the extension."""
        self.database(database)
        ledger = Ledger(self.conninfo(database))
        ledger.rows("CREATE EXTENSION command_ledger")
        return ledger

    def kill9(self) -> None:
        """kill -9 of the postmaster and of every process it has: as if the machine had lost its power."""
        # A stopped postmaster starts no new children meanwhile.
        os.kill(self.program.pid, signal.SIGSTOP)
        children = children_of(self.program.pid)
        for child in children:
            os.kill(child, signal.SIGKILL)
        self.program.kill9()
        for child in children:
            eventually(f"process {child} is gone", lambda child=child: not Path(f"/proc/{child}").exists())

    def crash_and_restart(self) -> None:
        self.kill9()
        self.start()

    def keep(self, copy: Path) -> None:
        """Leaves a copy of the stopped server's files; the next settings go after these."""
        self.stop()
        half = copy.with_suffix(".half")
        shutil.rmtree(half, ignore_errors=True)
        shutil.copytree(self.data, half)
        half.rename(copy)
        self.start()

    def stop(self) -> None:
        self.program.stop(signal.SIGINT)

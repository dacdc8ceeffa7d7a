"""Where one run has its things."""

from dataclasses import dataclass
from pathlib import Path

from .proxy import Proxy
from .server import Server


@dataclass
class Site:
    """The programs of this run, its directory and its PostgreSQL."""

    directory: Path
    state: Path
    server: Server
    #: Where the examples of the repository are.
    examples: Path
    #: Where the scenarios themselves are.
    code: Path = Path(__file__).resolve().parent.parent

    def program(self, environment: str, name: str) -> Path:
        """A program of one of the Python environments."""
        return self.state / environment / "bin" / name

    def own(self, name: str) -> Path:
        """A new directory for one peer."""
        directory = self.directory / name
        directory.mkdir()
        return directory

    def proxy(self, directory: Path, upstream_port: int) -> Proxy:
        return Proxy(self.program("peers-proxy", "mitmdump"), directory, upstream_port)

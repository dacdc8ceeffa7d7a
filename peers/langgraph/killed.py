"""Runs the example's agent with another tool, or until it is killed. Runs in the agent's own Python environment.

    python killed.py EXAMPLE WHEN CONNINFO THREAD REQUEST [ERP_URL TOKEN]

WHEN: never, after_commit (the tool has registered and committed), after_effect (the tool has returned, and the
checkpoint of its step is not written). With an ERP the tool calls it by itself, as tools do without a ledger.
"""

import functools
import json
import os
import signal
import sys
import urllib.request

sys.path.insert(0, sys.argv[1])
import agent
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool


def die(*_arguments, **_named):
    os.kill(os.getpid(), signal.SIGKILL)


def naive_tool(url: str, token: str):
    @tool
    def order_part(material: str, quantity: int, config: RunnableConfig) -> str:
        """Orders a quantity of a material."""
        order = {"reference": config["configurable"]["thread_id"], "material": material, "quantity": quantity}
        request = urllib.request.Request(
            url, json.dumps(order).encode(), {"Authorization": token, "Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            return f"ordered: {json.load(answer)['id']}"

    return order_part


def killed_after(inner):
    """The same function, and then the end of this process."""

    @functools.wraps(inner)
    def outer(*arguments, **named):
        inner(*arguments, **named)
        die()

    return outer


def main(when: str, conninfo: str, thread: str, request: str, *erp: str) -> None:
    chosen = naive_tool(*erp) if erp else agent.order_tool(conninfo)
    if when == "after_commit":
        agent.receipt = die
    elif when == "after_effect":
        chosen.func = killed_after(chosen.func)
    print(agent.run(conninfo, thread, request, [chosen]))


main(*sys.argv[2:])

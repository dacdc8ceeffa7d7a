"""An agent with LangGraph that orders a part, and orders it once.

    pip install "psycopg[binary]" langgraph langgraph-checkpoint-postgres
    python agent.py "host=... dbname=..." THREAD "We run low on BEARING-6204: order 40."

Kill it at any point and run it again with the same thread: it goes on from its last checkpoint. What the tool did after
that checkpoint is done again, and that is why the tool registers an intent instead of calling the ERP.
"""

import re
import sys

import psycopg
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, tool
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from psycopg.types.json import Jsonb

#: The key was used before for other parameters: a defect of the caller, never a reason for another key.
CONFLICT = "CL001"


def order(connection: psycopg.Connection, thread: str, material: str, quantity: int) -> str:
    """Writes the business row and the intent together, or neither; answers the intent's key."""
    with connection.transaction():
        # The key names the intent: this thread's order of this material. A tool call's id would be another one when the
        # model is asked again, and an id made here would be another one in every try.
        (key,) = connection.execute(
            "SELECT command_ledger.derive_key('requisition', %s, %s)", (thread, material)
        ).fetchone()
        connection.execute(
            "INSERT INTO requisition (number, material, quantity) VALUES (%s, %s, %s) ON CONFLICT DO NOTHING",
            (key, material, quantity),
        )
        connection.execute(
            "SELECT command_ledger.register('create_requisition', %s, %s, run_id => %s, step_id => 'order_part')",
            (key, Jsonb({"material": material, "quantity": quantity}), thread),
        )
    return key


def receipt(connection: psycopg.Connection, key: str) -> tuple[str, str | None, bool]:
    """What is known after at most 30 seconds. Outside of any transaction: the relay sends what is committed."""
    return connection.execute(
        "SELECT status::text, destination_record_id, maybe_sent FROM command_ledger.wait_for(%s, '30 s')", (key,)
    ).fetchone()


def order_tool(conninfo: str) -> BaseTool:
    """The tool that the model sees. It has no way to the ERP: it can only propose."""

    @tool
    def order_part(material: str, quantity: int, config: RunnableConfig) -> str:
        """Orders a quantity of a material. Calling it again with the same arguments orders nothing again."""
        thread = config["configurable"]["thread_id"]
        with psycopg.connect(conninfo, autocommit=True) as connection:
            try:
                key = order(connection, thread, material, quantity)
            except psycopg.Error as error:
                if error.sqlstate != CONFLICT:
                    raise
                # Said to the model as it is. Nothing was ordered, and nothing may be tried under another key.
                return f"conflict: this thread has ordered {material} before, in another quantity; nothing was sent"
            status, record_id, maybe_sent = receipt(connection, key)
        if status == "confirmed":
            return f"ordered: {record_id}"
        if status == "planned":
            return "waiting for a person's approval: it is ordered when it is given"
        if status in ("failed", "cancelled") and not maybe_sent:
            return f"not ordered: {status}"
        return "not known yet: do not order it in another way; ask again later with the same arguments"

    return order_part


class ScriptedModel(BaseChatModel):
    """Stands for a model: reads an order from the last thing that a person said, and reports what the tool said."""

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def _generate(self, messages: list[BaseMessage], *_arguments, **_named) -> ChatResult:
        last = messages[-1]
        if isinstance(last, ToolMessage):
            answer = AIMessage(content=f"The order: {last.content}")
        elif found := re.search(r"([A-Z]+-\d+).*\border (\d+)", str(last.content)):
            arguments = {"material": found[1], "quantity": int(found[2])}
            call = {"name": "order_part", "args": arguments, "id": f"call-{len(messages)}", "type": "tool_call"}
            answer = AIMessage(content="", tool_calls=[call])
        else:
            answer = AIMessage(content="There is nothing to order.")
        return ChatResult(generations=[ChatGeneration(message=answer)])


def build(model: BaseChatModel, tools: list[BaseTool], saver: PostgresSaver):
    """The usual loop: the model, its tools, the model again. With a real model: `model.bind_tools(tools)`."""
    graph = StateGraph(MessagesState)
    graph.add_node("model", lambda state: {"messages": [model.invoke(state["messages"])]})
    graph.add_node("tools", ToolNode(tools))
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", tools_condition)
    graph.add_edge("tools", "model")
    return graph.compile(checkpointer=saver)


def run(conninfo: str, thread: str, request: str, tools: list[BaseTool]) -> str:
    """Starts the thread, or goes on where it stood; answers what the model says last."""
    with PostgresSaver.from_conn_string(conninfo) as saver:
        saver.setup()
        graph = build(ScriptedModel(), tools, saver)
        config = {"configurable": {"thread_id": thread}}
        unfinished = graph.get_state(config).next
        # `sync`: what the model decided is stored before a tool acts on it.
        state = graph.invoke(None if unfinished else {"messages": [HumanMessage(request)]}, config, durability="sync")
        return state["messages"][-1].content


if __name__ == "__main__":
    print(run(*sys.argv[1:4], [order_tool(sys.argv[1])]))

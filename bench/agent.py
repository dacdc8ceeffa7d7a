"""An agent that makes the call itself: register and claim in one commit, the call (here an empty one), confirm in a
second commit; then the same keys again. Through psycopg's pool, as the peer does it.
"""

import asyncio
import json
import sys
import time
import uuid

from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool

from measure import ANSWER, PARAMS, Budget, Server, percentile, record, say, setting, wait_until_quiet

SECONDS = setting("AGENT_SECONDS", 1, 3)


async def handler(_effect):
    return {"ok": True, "receipt": "rcpt_0123456789"}


class Ours:
    """command_ledger."""

    name = "ledger"

    async def start(self, pool):
        self.pool = pool

    async def call(self, key):
        async with self.pool.connection() as session:
            answer = await session.execute(
                "SELECT (receipt).result, lease_token FROM command_ledger.register_and_claim('pay', %s, %s)", (key, PARAMS))
            row = await answer.fetchone()
        if row["lease_token"] is None:
            return row["result"]
        result = await handler(key)
        async with self.pool.connection() as session:
            await session.execute("SELECT command_ledger.confirm(%s, %s, %s, %s)",
                                  (key, row["lease_token"], result["receipt"], ANSWER))  # fmt: skip
        return result

    async def again(self, key):
        async with self.pool.connection() as session:
            answer = await session.execute("SELECT (command_ledger.register('pay', %s, %s)).result", (key, PARAMS))
            return (await answer.fetchone())["result"]


class Peer:
    """agent-ledger with its PostgreSQL store."""

    name = "agent_ledger"

    async def start(self, pool):
        from agent_ledger import EffectLedger, EffectLedgerOptions, ToolCall
        from agent_ledger.stores.postgres import SCHEMA_SQL, PostgresStore

        async with pool.connection() as session:
            await session.execute(SCHEMA_SQL)
        self.tool_call, self.arguments = ToolCall, json.loads(PARAMS)
        self.ledger = EffectLedger(EffectLedgerOptions(store=PostgresStore(pool=pool)))

    async def call(self, key):
        call = self.tool_call(workflow_id=key, tool="payment.capture", args=self.arguments)
        return await self.ledger.run(call, handler=handler)

    again = call


async def measure(side, server, callers, turn):
    async with AsyncConnectionPool(server.dsn(), min_size=callers, max_size=callers,
                                   kwargs={"autocommit": side is not Peer, "row_factory": dict_row}) as pool:  # fmt: skip
        subject = side()
        await subject.start(pool)
        keys = []

        async def fresh(end, latencies, _):
            while time.monotonic() < end:
                key, started = str(uuid.uuid4()), time.monotonic()
                await subject.call(key)
                latencies.append(time.monotonic() - started)
                keys.append(key)

        async def replay(end, latencies, place):
            while time.monotonic() < end:
                started = time.monotonic()
                await subject.again(keys[place % len(keys)])
                latencies.append(time.monotonic() - started)
                place += callers

        for what, work in (("run", fresh), ("replay", replay)):
            latencies, started = [], time.monotonic()
            await asyncio.gather(*(work(started + SECONDS, latencies, i) for i in range(callers)))
            took, ordered = time.monotonic() - started, sorted(latencies)
            spread = {f"p{q}_us": round(1e6 * percentile(ordered, q / 100)) for q in (50, 95, 99)}
            record("agent", side=side.name, what=what, callers=callers, turn=turn, calls=len(ordered),
                   per_s=round(len(ordered) / took, 1), **spread)  # fmt: skip
            say(f"   {side.name + ' ' + what:22} {callers:3} callers {len(ordered) / took:8,.0f}/s  p50 {spread['p50_us']} us")


def main():
    sides = [Ours] + ([Peer] if "peer" in sys.argv[1:] else [])
    servers = {}
    for side in sides:
        servers[side] = Server(f"bench_agent_{side.name}")
        servers[side].create(*(["ledger.sql"] if side is Ours else []))
    budget = Budget(setting("PATIENCE", 3, 30))
    for turn in range(setting("AGENT_ROUNDS", 1, 3)):
        for callers in [int(x) for x in setting("CLIENTS", "1 4", "1 4 16").split()]:
            for side in sides[:: -1 if turn % 2 else 1]:
                servers[side].sql("CHECKPOINT")
                wait_until_quiet(budget)
                asyncio.run(measure(side, servers[side], callers, turn + 1))


if __name__ == "__main__":
    main()

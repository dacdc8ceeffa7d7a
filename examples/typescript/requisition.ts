// Registers a purchase requisition with the business row, commits, and waits for the receipt.
//
//     npm install pg
//     node requisition.ts "postgres://..." NUMBER MATERIAL QUANTITY        (Node 22.18 or newer runs it as it stands)
//
// Run it as often as you like with the same arguments: there is one requisition. Ends with 0 when it is confirmed, 2 for a
// conflict, 3 while the outcome is not known.
import pg from "pg";

type Receipt = { status: string; destination_record_id: string | null; maybe_sent: boolean };

/** The key was used before for other parameters: a defect of the caller, never a reason for another key. */
const CONFLICT = "CL001";

/** Writes the business row and the intent together, or neither; answers what the registration did. */
async function order(client: pg.Client, number: string, material: string, quantity: number): Promise<string> {
  await client.query("BEGIN");
  try {
    await client.query(
      "INSERT INTO requisition (number, material, quantity) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING",
      [number, material, quantity],
    );
    // The key names the intent. It is the same in every try.
    const { rows } = await client.query(
      "SELECT outcome FROM command_ledger.register('create_requisition', $1, $2)",
      [`requisition-${number}`, JSON.stringify({ material, quantity })],
    );
    await client.query("COMMIT");
    return rows[0].outcome;
  } catch (error) {
    await client.query("ROLLBACK");
    throw error;
  }
}

/** What is known after at most 30 seconds. Outside of any transaction: the relay sends what is committed. */
async function receipt(client: pg.Client, number: string): Promise<Receipt> {
  const { rows } = await client.query<Receipt>(
    "SELECT status, destination_record_id, maybe_sent FROM command_ledger.wait_for($1, '30 s')",
    [`requisition-${number}`],
  );
  return rows[0];
}

async function main(address: string, number: string, material: string, quantity: string): Promise<number> {
  const client = new pg.Client(address);
  await client.connect();
  try {
    const outcome = await order(client, number, material, Number(quantity));
    const { status, destination_record_id } = await receipt(client, number);
    console.log(outcome, status, destination_record_id);
    return status === "confirmed" ? 0 : status === "failed" || status === "cancelled" ? 1 : 3;
  } catch (error) {
    if ((error as { code?: string }).code !== CONFLICT) throw error;
    console.log("conflict", (error as Error).message);
    return 2;
  } finally {
    await client.end();
  }
}

const [address, number, material, quantity] = process.argv.slice(2);
process.exitCode = await main(address, number, material, quantity);

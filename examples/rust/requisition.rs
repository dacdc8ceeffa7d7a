//! Registers a purchase requisition with the business row, commits, and waits for the receipt.
//!
//!     cargo run -p pg_test --bin requisition -- "host=... dbname=... user=..." NUMBER MATERIAL QUANTITY
//!
//! Run it as often as you like with the same arguments: there is one requisition. Ends with 0 when it is confirmed, 2 for
//! a conflict, 3 while the outcome is not known.

use std::process::ExitCode;

use postgres::{Client, Error, NoTls};

/// The key was used before for other parameters: a defect of the caller, never a reason for another key.
const CONFLICT: &str = "CL001";

/// Writes the business row and the intent together, or neither; answers what the registration did.
fn order(client: &mut Client, number: &str, material: &str, quantity: i32) -> Result<String, Error> {
    let mut transaction = client.transaction()?;
    transaction.execute(
        "INSERT INTO requisition (number, material, quantity) VALUES ($1, $2, $3::int) ON CONFLICT DO NOTHING",
        &[&number, &material, &quantity],
    )?;
    // The key names the intent. It is the same in every try.
    let key = format!("requisition-{number}");
    let row = transaction.query_one(
        "SELECT outcome FROM command_ledger.register('create_requisition', $1, \
                jsonb_build_object('material', $2::text, 'quantity', $3::int))",
        &[&key, &material, &quantity],
    )?;
    let outcome = row.try_get(0)?;
    transaction.commit()?;
    Ok(outcome)
}

/// What is known after at most 30 seconds. Outside of any transaction: the relay sends what is committed.
fn receipt(client: &mut Client, number: &str) -> Result<(String, Option<String>), Error> {
    let row = client.query_one(
        "SELECT status::text, destination_record_id FROM command_ledger.wait_for($1, '30 s')",
        &[&format!("requisition-{number}")],
    )?;
    Ok((row.try_get(0)?, row.try_get(1)?))
}

fn run(arguments: &[String]) -> Result<u8, Box<dyn std::error::Error>> {
    let [address, number, material, quantity] = arguments else {
        return Err("usage: requisition ADDRESS NUMBER MATERIAL QUANTITY".into());
    };
    let mut client = Client::connect(address, NoTls)?;
    let outcome = match order(&mut client, number, material, quantity.parse()?) {
        Ok(outcome) => outcome,
        Err(error) if error.code().is_some_and(|code| code.code() == CONFLICT) => {
            println!("conflict {}", error.as_db_error().map_or("", |e| e.message()));
            return Ok(2);
        }
        Err(error) => return Err(error.into()),
    };
    let (status, record_id) = receipt(&mut client, number)?;
    println!("{outcome} {status} {}", record_id.unwrap_or_default());
    Ok(match status.as_str() {
        "confirmed" => 0,
        "failed" | "cancelled" => 1,
        // Not known yet. Leave it to the ledger and to people; ask again later, with the same key.
        _ => 3,
    })
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments) {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("requisition: {error}");
            ExitCode::FAILURE
        }
    }
}

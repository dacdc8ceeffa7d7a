//! The demo's small ERP: real HTTP on loopback, its own storage in a file, and no notion of idempotency.
//!
//! `erp [--port N] [--file PATH] [--lose-answers N]`
//!
//! POST /requisitions makes a record each time it is asked; GET /requisitions lists them, `?reference=…` searches by
//! reference, GET /requisitions/ID reads one. With `--lose-answers N` the first N creations are stored and then the
//! connection is closed without an answer. The port is printed on standard output. It ends on SIGTERM, or when
//! standard input is a pipe and the parent closes it.

use std::fs::{self, File};
use std::io::{self, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::spawn;
use std::time::Duration;

use pg_test::http::{Request, read_request, response_bytes};
use serde_json::{Value, json};

const USAGE: &str = "usage: erp [--port N] [--file PATH] [--lose-answers N]";
/// The first record is REQ-1001.
const FIRST_NUMBER: usize = 1001;
/// A connection serves no more requests than this, and none waits longer than this for the next.
const REQUESTS_PER_CONNECTION: u32 = 10_000;
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);

struct Options {
    port: u16,
    file: PathBuf,
    lose_answers: u32,
}

impl Options {
    fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Options, String> {
        let mut options = Options { port: 0, file: PathBuf::from("requisitions.jsonl"), lose_answers: 0 };
        while let Some(name) = arguments.next() {
            let value = arguments.next().ok_or_else(|| format!("{name} needs a value"))?;
            let number = || value.parse::<u32>().map_err(|_| format!("{name} {value}: not a number"));
            match name.as_str() {
                "--port" => options.port = u16::try_from(number()?).map_err(|e| format!("{name} {value}: {e}"))?,
                "--file" => options.file = PathBuf::from(value),
                "--lose-answers" => options.lose_answers = number()?,
                _ => return Err(format!("unknown option {name}")),
            }
        }
        Ok(options)
    }
}

/// The records, and the file that they are in: one JSON object per line, on disk before it is answered.
struct Store {
    file: File,
    records: Vec<Value>,
    answers_to_lose: u32,
}

impl Store {
    fn open(path: &Path, answers_to_lose: u32) -> io::Result<Store> {
        let mut file = File::options().create(true).read(true).append(true).open(path)?;
        let mut text = String::new();
        file.read_to_string(&mut text)?;
        // A line without an end was being written when the process died: it was never answered.
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        file.set_len(whole as u64)?;
        let records = text[..whole].lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
        Ok(Store { file, records, answers_to_lose })
    }

    fn create(&mut self, mut record: Value) -> io::Result<Value> {
        record["id"] = json!(format!("REQ-{}", FIRST_NUMBER + self.records.len()));
        self.file.write_all(format!("{record}\n").as_bytes())?;
        self.file.sync_data()?;
        self.records.push(record.clone());
        Ok(record)
    }

    fn search(&self, reference: Option<&str>) -> Value {
        let matches = |record: &&Value| reference.is_none_or(|wanted| record["reference"] == *wanted);
        self.records.iter().filter(matches).cloned().collect()
    }

    fn read(&self, id: &str) -> Option<&Value> {
        self.records.iter().find(|record| record["id"] == *id)
    }
}

/// Status and body; None: the answer gets lost.
type Answer = Option<(u16, Value)>;

fn answer(store: &mut Store, request: &Request) -> io::Result<Answer> {
    let not_found = Some((404, json!({ "error": "no such resource" })));
    Ok(match (request.method.as_str(), request.path()) {
        ("GET", "/requisitions") => Some((200, store.search(request.query("reference").as_deref()))),
        ("GET", path) => {
            let found = path.strip_prefix("/requisitions/").and_then(|id| store.read(id));
            found.map(|record| (200, record.clone())).or(not_found)
        }
        ("POST", "/requisitions") => match request.json() {
            Some(body) if body.is_object() => {
                let record = store.create(body)?;
                let is_lost = store.answers_to_lose > 0;
                store.answers_to_lose = store.answers_to_lose.saturating_sub(1);
                (!is_lost).then_some((201, record))
            }
            _ => Some((400, json!({ "error": "a JSON object is needed" }))),
        },
        ("POST", _) => not_found,
        _ => Some((405, json!({ "error": "only GET and POST" }))),
    })
}

fn lock(store: &Mutex<Store>) -> MutexGuard<'_, Store> {
    store.lock().unwrap_or_else(PoisonError::into_inner)
}

fn serve(stream: &TcpStream, store: &Mutex<Store>) -> io::Result<()> {
    stream.set_read_timeout(Some(IDLE_TIMEOUT))?;
    stream.set_nodelay(true)?;
    let mut reader = BufReader::new(stream);
    for _ in 0..REQUESTS_PER_CONNECTION {
        let Some(request) = read_request(&mut reader)? else { return Ok(()) };
        let Some((status, body)) = answer(&mut lock(store), &request)? else { return Ok(()) };
        let headers = vec![("Content-Type".to_owned(), "application/json".to_owned())];
        (&mut &*stream).write_all(&response_bytes(status, &headers, body.to_string().as_bytes()))?;
        if request.header("connection").is_some_and(|value| value.eq_ignore_ascii_case("close")) {
            return Ok(());
        }
    }
    Ok(())
}

/// Ends the process when the parent closes our standard input (or dies).
fn end_with_parent() {
    let is_pipe = fs::metadata("/dev/stdin").is_ok_and(|stdin| stdin.file_type().is_fifo());
    if is_pipe {
        spawn(|| {
            let _ = io::copy(&mut io::stdin(), &mut io::sink());
            std::process::exit(0);
        });
    }
}

fn run(options: &Options) -> io::Result<()> {
    let store = Arc::new(Mutex::new(Store::open(&options.file, options.lose_answers)?));
    let listener = TcpListener::bind(("127.0.0.1", options.port))?;
    println!("{}", listener.local_addr()?.port());
    io::stdout().flush()?;
    end_with_parent();
    for stream in listener.incoming() {
        let (stream, store) = (stream?, Arc::clone(&store));
        spawn(move || {
            if let Err(error) = serve(&stream, &store) {
                eprintln!("erp: {error}");
            }
        });
    }
    Ok(())
}

fn main() -> ExitCode {
    let options = match Options::parse(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(error) => {
            eprintln!("erp: {error}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match run(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("erp: {error}");
            ExitCode::FAILURE
        }
    }
}

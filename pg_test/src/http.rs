//! As much HTTP/1.1 as a test needs, on both sides: exact bytes in, exact bytes out, nothing repeated by itself.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// The largest head (request line and headers) that is read.
const HEAD_MAX_BYTES: u64 = 64 * 1024;
/// The largest body that is read.
const BODY_MAX_BYTES: u64 = 64 * 1024 * 1024;
/// How long the client waits for bytes before it gives up.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(30);

/// Header names as they came, values without the blanks around them.
pub type Headers = Vec<(String, String)>;

/// The value of a header, whatever the case of its name.
pub fn header<'a>(headers: &'a Headers, name: &str) -> Option<&'a str> {
    headers.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
}

/// A request as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// `POST`
    pub method: String,
    /// Path and query as sent.
    pub target: String,
    /// In the order of the wire.
    pub headers: Headers,
    /// The exact bytes (of a chunked body: without the chunk lines).
    pub body: Vec<u8>,
}

impl Request {
    /// The path without the query.
    pub fn path(&self) -> &str {
        self.target.split('?').next().unwrap_or_default()
    }

    /// A query parameter, percent-decoded.
    pub fn query(&self, name: &str) -> Option<String> {
        form_value(self.target.split_once('?')?.1, name)
    }

    /// A header's value.
    pub fn header(&self, name: &str) -> Option<&str> {
        header(&self.headers, name)
    }

    /// The body as JSON, when it is.
    pub fn json(&self) -> Option<serde_json::Value> {
        serde_json::from_slice(&self.body).ok()
    }
}

/// A value of `a=1&b=2`, percent-decoded.
pub fn form_value(form: &str, name: &str) -> Option<String> {
    let mut pairs = form.split('&').filter_map(|pair| pair.split_once('='));
    pairs.find(|(known, _)| percent_decoded(known) == name).map(|(_, value)| percent_decoded(value))
}

fn percent_decoded(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let escaped = (bytes[at] == b'%').then(|| text.get(at + 1..at + 3)).flatten();
        match escaped.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) => {
                out.push(byte);
                at += 3;
            }
            None => {
                out.push(if bytes[at] == b'+' { b' ' } else { bytes[at] });
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// Percent-encodes everything but unreserved characters.
pub fn percent_encoded(text: &str) -> String {
    let encode = |byte: u8| match byte {
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    };
    text.bytes().map(encode).collect()
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, what.to_owned())
}

/// The first line and the headers; None at a clean end of the stream.
fn read_head(stream: &mut impl BufRead) -> io::Result<Option<(String, Headers)>> {
    let mut limited = stream.take(HEAD_MAX_BYTES);
    let mut lines = Vec::new();
    loop {
        let mut line = Vec::new();
        if limited.read_until(b'\n', &mut line)? == 0 {
            return if lines.is_empty() { Ok(None) } else { Err(ErrorKind::UnexpectedEof.into()) };
        }
        let line = String::from_utf8_lossy(&line).trim_end_matches(['\r', '\n']).to_owned();
        if line.is_empty() {
            break;
        }
        lines.push(line);
    }
    let mut lines = lines.into_iter();
    let first = lines.next().ok_or_else(|| invalid("no first line"))?;
    let split = |line: String| line.split_once(':').map(|(name, value)| (name.to_owned(), value.trim().to_owned()));
    let headers: Option<Headers> = lines.map(split).collect();
    Ok(Some((first, headers.ok_or_else(|| invalid("a header without a colon"))?)))
}

/// A body framed by its headers; `to_end` says what stands when there is no frame: the rest, or nothing.
fn read_body(stream: &mut impl BufRead, headers: &Headers, to_end: bool) -> io::Result<Vec<u8>> {
    if header(headers, "transfer-encoding").is_some_and(|value| value.eq_ignore_ascii_case("chunked")) {
        return read_chunks(stream);
    }
    let mut body = Vec::new();
    let length = header(headers, "content-length").map(|value| value.parse::<u64>());
    match length.transpose().map_err(|_| invalid("content-length"))? {
        Some(length) if length > BODY_MAX_BYTES => Err(invalid("body too long")),
        Some(length) => {
            let read = stream.take(length).read_to_end(&mut body)?;
            if (read as u64) < length { Err(ErrorKind::UnexpectedEof.into()) } else { Ok(body) }
        }
        None if to_end => {
            stream.take(BODY_MAX_BYTES).read_to_end(&mut body)?;
            Ok(body)
        }
        None => Ok(body),
    }
}

fn read_chunks(stream: &mut impl BufRead) -> io::Result<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let mut line = String::new();
        stream.take(HEAD_MAX_BYTES).read_line(&mut line)?;
        let size = line.split(';').next().unwrap_or_default().trim();
        let size = u64::from_str_radix(size, 16).map_err(|_| invalid("chunk size"))?;
        if body.len() as u64 + size > BODY_MAX_BYTES {
            return Err(invalid("body too long"));
        }
        let read = stream.take(size).read_to_end(&mut body)?;
        if (read as u64) < size {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        let mut line_end = String::new();
        stream.take(HEAD_MAX_BYTES).read_line(&mut line_end)?;
        if size == 0 {
            return Ok(body);
        }
    }
}

/// Reads one request; None when the peer closed the connection between requests.
pub fn read_request(stream: &mut impl BufRead) -> io::Result<Option<Request>> {
    let Some((first, headers)) = read_head(stream)? else { return Ok(None) };
    let mut words = first.split(' ');
    let (Some(method), Some(target), Some("HTTP/1.1" | "HTTP/1.0")) = (words.next(), words.next(), words.next()) else {
        return Err(invalid("request line"));
    };
    let (method, target) = (method.to_owned(), target.to_owned());
    let body = read_body(stream, &headers, false)?;
    Ok(Some(Request { method, target, headers, body }))
}

/// The bytes of a response with a fixed length.
pub fn response_bytes(status: u16, headers: &Headers, body: &[u8]) -> Vec<u8> {
    let mut bytes = format!("HTTP/1.1 {status} Status\r\nContent-Length: {}\r\n", body.len()).into_bytes();
    for (name, value) in headers {
        bytes.extend_from_slice(format!("{name}: {value}\r\n").as_bytes());
    }
    bytes.extend_from_slice(b"\r\n");
    bytes.extend_from_slice(body);
    bytes
}

/// A response as the client read it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// 200
    pub status: u16,
    /// In the order of the wire.
    pub headers: Headers,
    /// The exact bytes.
    pub body: Vec<u8>,
}

impl Response {
    /// The body as JSON; `null` when it is not.
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }
}

/// A plain client connection: sends what it is told, once, and keeps the connection.
#[derive(Debug)]
pub struct Connection {
    stream: BufReader<TcpStream>,
    host: String,
}

impl Connection {
    /// Connects to `http://127.0.0.1:PORT/…` (the path is not looked at).
    pub fn open(url: &str) -> io::Result<Connection> {
        let (host, _) = split_url(url)?;
        let address: SocketAddr = host.parse().map_err(|_| invalid("an address like 127.0.0.1:80 is needed"))?;
        let stream = TcpStream::connect_timeout(&address, CLIENT_TIMEOUT)?;
        stream.set_read_timeout(Some(CLIENT_TIMEOUT))?;
        stream.set_nodelay(true)?;
        Ok(Connection { stream: BufReader::new(stream), host })
    }

    /// Gives up on answers that take longer than this.
    pub fn set_timeout(&mut self, timeout: Duration) -> io::Result<()> {
        self.stream.get_ref().set_read_timeout(Some(timeout))
    }

    /// Sends a request without waiting for the answer.
    pub fn send(&mut self, method: &str, target: &str, headers: &[(&str, &str)], body: &[u8]) -> io::Result<()> {
        let mut bytes = format!("{method} {target} HTTP/1.1\r\nHost: {}\r\n", self.host);
        for (name, value) in headers {
            bytes.push_str(&format!("{name}: {value}\r\n"));
        }
        bytes.push_str(&format!("Content-Length: {}\r\n\r\n", body.len()));
        let mut bytes = bytes.into_bytes();
        bytes.extend_from_slice(body);
        self.stream.get_mut().write_all(&bytes)
    }

    /// Reads one response.
    pub fn receive(&mut self) -> io::Result<Response> {
        let Some((first, headers)) = read_head(&mut self.stream)? else { return Err(ErrorKind::UnexpectedEof.into()) };
        let status =
            first.split(' ').nth(1).and_then(|word| word.parse().ok()).ok_or_else(|| invalid("status line"))?;
        let body = read_body(&mut self.stream, &headers, true)?;
        Ok(Response { status, headers, body })
    }

    /// Sends a request and reads its answer.
    pub fn call(&mut self, method: &str, target: &str, headers: &[(&str, &str)], body: &[u8]) -> io::Result<Response> {
        self.send(method, target, headers, body)?;
        self.receive()
    }
}

fn split_url(url: &str) -> io::Result<(String, String)> {
    let rest = url.strip_prefix("http://").ok_or_else(|| invalid("an http URL is needed"))?;
    let at = rest.find('/').unwrap_or(rest.len());
    let target = if at == rest.len() { "/" } else { &rest[at..] };
    Ok((rest[..at].to_owned(), target.to_owned()))
}

/// POST of a JSON body on a connection of its own.
pub fn post_json(url: &str, body: &serde_json::Value) -> io::Result<Response> {
    let target = split_url(url)?.1;
    let headers = [("Content-Type", "application/json"), ("Connection", "close")];
    Connection::open(url)?.call("POST", &target, &headers, body.to_string().as_bytes())
}

/// GET on a connection of its own.
pub fn get(url: &str) -> io::Result<Response> {
    let target = split_url(url)?.1;
    Connection::open(url)?.call("GET", &target, &[("Connection", "close")], b"")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percent_encoding_round_trips() {
        let text = "a b/ü%+&=";
        let target = format!("/x?k={}", percent_encoded(text));
        let request = Request { method: "GET".into(), target, headers: vec![], body: vec![] };
        assert_eq!(request.query("k").as_deref(), Some(text));
        assert_eq!(request.path(), "/x");
    }

    #[test]
    fn chunked_bodies_are_read_without_their_frames() {
        let mut wire = &b"POST /x HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nWiki\r\n5;ext=1\r\npedia\r\n0\r\n\r\nGET /y HTTP/1.1\r\n\r\n"[..];
        assert_eq!(read_request(&mut wire).expect("reads").expect("one").body, b"Wikipedia");
        assert_eq!(read_request(&mut wire).expect("reads").expect("two").target, "/y");
        assert_eq!(read_request(&mut wire).expect("reads"), None);
    }

    #[test]
    fn a_cut_request_is_an_error_not_a_request() {
        let mut wire = &b"POST /x HTTP/1.1\r\nContent-Length: 10\r\n\r\nabc"[..];
        assert!(read_request(&mut wire).is_err());
    }
}

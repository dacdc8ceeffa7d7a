//! The outgoing proxy: its setting, and the tunnel through it.

use std::fmt;
use std::net::Ipv4Addr;

use http::{HeaderValue, Uri};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::basic::basic_authorization;
use crate::config::ConfigError;
use crate::gate::Gated;
use crate::limits::PROXY_HEAD_MAX_BYTES;

/// An HTTP proxy, `http://[user:password@]host[:port]`. Only the setting counts; the environment is never asked.
#[derive(Clone)]
pub(crate) struct Proxy {
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) authorization: Option<HeaderValue>,
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Proxy").field("host", &self.host).field("port", &self.port).finish_non_exhaustive()
    }
}

impl Proxy {
    pub(crate) fn parse(text: &str) -> Result<Proxy, ConfigError> {
        let uri: Uri = text.trim().parse().map_err(|_| ConfigError::Proxy("not a URL"))?;
        if uri.scheme_str() != Some("http") {
            return Err(ConfigError::Proxy("the scheme must be http"));
        }
        if !matches!(uri.path(), "" | "/") || uri.query().is_some() {
            return Err(ConfigError::Proxy("it must have no path"));
        }
        let authority = uri.authority().ok_or(ConfigError::Proxy("it has no host"))?;
        let host = authority.host().trim_matches(['[', ']']).to_owned();
        if host.is_empty() {
            return Err(ConfigError::Proxy("it has no host"));
        }
        let port = match authority.port() {
            Some(port) => port.as_str().parse().map_err(|_| ConfigError::Proxy("the port is not a number"))?,
            None => 80,
        };
        let authorization = match authority.as_str().rsplit_once('@') {
            Some((user, _)) => Some(basic(user)?),
            None => None,
        };
        Ok(Proxy { host, port, authorization })
    }
}

fn basic(user_and_password: &str) -> Result<HeaderValue, ConfigError> {
    let plain = percent_decoded(user_and_password).ok_or(ConfigError::Proxy("the user or password is not encoded"))?;
    let text = basic_authorization(&plain);
    let mut value =
        HeaderValue::from_str(&text).map_err(|_| ConfigError::Proxy("the user or password is not valid"))?;
    value.set_sensitive(true);
    Ok(value)
}

fn percent_decoded(text: &str) -> Option<Vec<u8>> {
    let mut decoded = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte == b'%' {
            let high = char::from(bytes.next()?).to_digit(16)?;
            let low = char::from(bytes.next()?).to_digit(16)?;
            decoded.push(u8::try_from(high * 16 + low).ok()?);
        } else {
            decoded.push(byte);
        }
    }
    Some(decoded)
}

/// Hosts that a resolver may read as a number in an unusual form (`0xa9fea9fe`, `2852039166`, `169.254.1`): the proxy
/// would resolve what we could not check.
pub(crate) fn is_disguised_address(host: &str) -> bool {
    let last = host.strip_suffix('.').unwrap_or(host).rsplit('.').next().unwrap_or("");
    let numeric = !last.is_empty() && last.bytes().all(|byte| byte.is_ascii_digit());
    let hex = last.len() > 1 && (last.starts_with("0x") || last.starts_with("0X"));
    (numeric || hex) && host.parse::<Ipv4Addr>().is_err()
}

/// Asks the proxy for a tunnel to `target` (host:port). Nothing of the request has been written yet, so every failure
/// here is a `NotSent`.
pub(crate) async fn open_tunnel(stream: &mut Gated, target: &str, proxy: &Proxy) -> Result<(), String> {
    let mut head = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n").into_bytes();
    if let Some(authorization) = &proxy.authorization {
        head.extend_from_slice(b"Proxy-Authorization: ");
        head.extend_from_slice(authorization.as_bytes());
        head.extend_from_slice(b"\r\n");
    }
    head.extend_from_slice(b"\r\n");
    stream.write_all(&head).await.map_err(|error| format!("the proxy did not take the tunnel request: {error}"))?;

    let mut answer = Vec::with_capacity(256);
    loop {
        if answer.len() >= PROXY_HEAD_MAX_BYTES {
            return Err("the proxy's answer to the tunnel request is too long".to_owned());
        }
        let mut chunk = [0_u8; 512];
        let read =
            stream.read(&mut chunk).await.map_err(|error| format!("the proxy did not open the tunnel: {error}"))?;
        if read == 0 {
            return Err("the proxy closed the connection instead of opening the tunnel".to_owned());
        }
        answer.extend_from_slice(chunk.get(..read).unwrap_or_default());
        if let Some(end) = answer.windows(4).position(|window| window == b"\r\n\r\n") {
            // TLS lets the client speak first: a byte behind the head would be taken for TLS.
            if end + 4 != answer.len() {
                return Err("the proxy sent data before the tunnel was used".to_owned());
            }
            break;
        }
    }
    match tunnel_status(&answer) {
        Some(200..=299) => Ok(()),
        Some(status) => Err(format!("the proxy refused the tunnel with status {status}")),
        None => Err("the proxy's answer to the tunnel request is not HTTP".to_owned()),
    }
}

fn tunnel_status(head: &[u8]) -> Option<u16> {
    let line = head.split(|byte| *byte == b'\r').next()?;
    let text = std::str::from_utf8(line).ok()?;
    let mut words = text.split(' ');
    words.next().filter(|version| version.starts_with("HTTP/1."))?;
    words.next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proxy_setting_is_read_and_its_password_never_shown() {
        let proxy = Proxy::parse("http://ann:s%40cret@proxy.internal:3128").expect("valid");
        assert_eq!((proxy.host.as_str(), proxy.port), ("proxy.internal", 3128));
        assert_eq!(proxy.authorization.as_ref().map(HeaderValue::as_bytes), Some(&b"Basic YW5uOnNAY3JldA=="[..]));
        assert!(!format!("{proxy:?}").contains("YW5u"));
        for wrong in ["https://proxy", "proxy:3128", "http://proxy/path", "socks5://proxy", ""] {
            assert!(Proxy::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn numbers_in_disguise_are_told_from_names_and_addresses() {
        for disguised in ["2852039166", "0xa9fea9fe", "169.254.43518", "0xa9.0xfe.0xa9.0xfe", "0251.0376.0251.0376"] {
            assert!(is_disguised_address(disguised), "{disguised}");
        }
        for plain in ["169.254.169.254", "erp.example", "host1", "1.example"] {
            assert!(!is_disguised_address(plain), "{plain}");
        }
    }
}

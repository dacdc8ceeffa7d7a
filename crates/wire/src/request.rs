//! From a call to a request that HTTP can carry, or the reason why it cannot. Nothing is sent here.

use bytes::Bytes;
use http::header::{self, HeaderName, HeaderValue};
use http::{HeaderMap, Method, Request, Uri, Version};
use http_body_util::Full;

use crate::call::Call;
use crate::limits::{REQUEST_BODY_MAX_BYTES, REQUEST_HEADERS_MAX, REQUEST_HEADERS_MAX_BYTES, URL_MAX_BYTES};
use crate::proxy::Proxy;

/// Where a connection goes; connections are shared by calls with the same origin.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct Origin {
    pub(crate) tls: bool,
    /// A name in lower case, or an address without brackets.
    pub(crate) host: String,
    pub(crate) port: u16,
}

impl Origin {
    /// `host:port`, with brackets around an IPv6 address.
    pub(crate) fn authority(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }
}

/// A request that is ready to be written.
pub(crate) struct Prepared {
    pub(crate) origin: Origin,
    pub(crate) request: Request<Full<Bytes>>,
}

/// Fields that frame the message or belong to the connection. A destination's definition must not set them: with them a
/// request could be cut in two, or wait for an answer that never comes.
const REFUSED_HEADERS: [&str; 10] = [
    "connection",
    "content-length",
    "expect",
    "keep-alive",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Checks the call and builds its request. The body moves out of the call.
pub(crate) fn prepare(call: &mut Call, proxy: Option<&Proxy>) -> Result<Prepared, String> {
    let (origin, uri) = target(&call.url)?;
    let method = Method::from_bytes(call.method.as_bytes()).map_err(|_| "the method is not valid".to_owned())?;
    if method == Method::CONNECT {
        return Err("the method CONNECT is not allowed".to_owned());
    }
    if call.body.len() > REQUEST_BODY_MAX_BYTES {
        return Err(format!("the body has more than {REQUEST_BODY_MAX_BYTES} bytes"));
    }
    let mut headers = headers(&call.headers)?;
    if !headers.contains_key(header::HOST) {
        let default_port = if origin.tls { 443 } else { 80 };
        let authority = origin.authority();
        let host = match authority.strip_suffix(&format!(":{default_port}")) {
            Some(host) if origin.port == default_port => host,
            _ => authority.as_str(),
        };
        let value = HeaderValue::from_str(host).map_err(|_| "the URL's host is not valid".to_owned())?;
        headers.insert(header::HOST, value);
    }
    let defaults = [
        (header::USER_AGENT, concat!("command_ledger/", env!("CARGO_PKG_VERSION"))),
        (header::ACCEPT, "*/*"),
        (header::ACCEPT_ENCODING, "identity"),
    ];
    for (name, value) in defaults {
        headers.entry(name).or_insert(HeaderValue::from_static(value));
    }

    let mut request = Request::new(Full::new(Bytes::from(std::mem::take(&mut call.body))));
    *request.method_mut() = method;
    *request.version_mut() = Version::HTTP_11;
    *request.uri_mut() = match proxy {
        Some(proxy) if !origin.tls => {
            if let Some(authorization) = &proxy.authorization {
                headers.insert(header::PROXY_AUTHORIZATION, authorization.clone());
            }
            uri
        }
        _ => path_only(&uri)?,
    };
    *request.headers_mut() = headers;
    Ok(Prepared { origin, request })
}

fn target(url: &str) -> Result<(Origin, Uri), String> {
    let invalid = |why: &str| format!("the URL is not valid: {why}");
    if url.len() > URL_MAX_BYTES {
        return Err(invalid("it is too long"));
    }
    if !url.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(invalid("it has a blank, a control character or a character outside ASCII"));
    }
    let uri: Uri = url.parse().map_err(|_| invalid("it cannot be read"))?;
    let tls = match uri.scheme_str() {
        Some(scheme) if scheme.eq_ignore_ascii_case("http") => false,
        Some(scheme) if scheme.eq_ignore_ascii_case("https") => true,
        _ => return Err(invalid("the scheme is neither http nor https")),
    };
    let authority = uri.authority().ok_or_else(|| invalid("it has no host"))?;
    if authority.as_str().contains('@') {
        return Err(invalid("it has user information"));
    }
    let host = authority.host().trim_matches(['[', ']']).to_ascii_lowercase();
    if host.is_empty() {
        return Err(invalid("it has no host"));
    }
    let port = match (authority.port(), authority.as_str().rsplit_once(':')) {
        (Some(port), _) => port.as_str().parse::<u16>().map_err(|_| invalid("the port is not a number"))?,
        (None, Some((_, rest))) if !rest.is_empty() && !rest.ends_with(']') => {
            return Err(invalid("the port is not a number"));
        }
        _ if tls => 443,
        _ => 80,
    };
    if port == 0 {
        return Err(invalid("the port is 0"));
    }
    Ok((Origin { tls, host, port }, uri))
}

fn path_only(uri: &Uri) -> Result<Uri, String> {
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let path = if path.is_empty() { "/" } else { path };
    let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
    path.parse().map_err(|_| "the URL is not valid: its path cannot be read".to_owned())
}

fn headers(fields: &[(String, String)]) -> Result<HeaderMap, String> {
    let bytes: usize = fields.iter().map(|(name, value)| name.len() + value.len()).sum();
    if fields.len() > REQUEST_HEADERS_MAX || bytes > REQUEST_HEADERS_MAX_BYTES {
        return Err("there are too many header fields, or they are too long".to_owned());
    }
    let mut headers = HeaderMap::with_capacity(fields.len() + 4);
    for (position, (name, value)) in fields.iter().enumerate() {
        let name = HeaderName::from_bytes(name.as_bytes())
            .map_err(|_| format!("the name of header field {} is not valid", position + 1))?;
        if REFUSED_HEADERS.contains(&name.as_str()) {
            return Err(format!("header field {name} is set by the transport and must not be given"));
        }
        if name == header::HOST && headers.contains_key(header::HOST) {
            return Err("header field host is given twice".to_owned());
        }
        let mut value = HeaderValue::from_bytes(value.as_bytes())
            .map_err(|_| format!("the value of header field {name} has a line break or another control character"))?;
        value.set_sensitive(true);
        headers.append(name, value);
    }
    Ok(headers)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    fn call(url: &str) -> Call {
        Call {
            id: 1,
            method: "POST".to_owned(),
            url: url.to_owned(),
            headers: Vec::new(),
            body: Vec::new(),
            timeout_ms: 1,
            connect_timeout_ms: 1,
            response_limit: 1,
            not_after: Instant::now(),
        }
    }

    fn host_and_path(url: &str) -> (String, String) {
        let prepared = prepare(&mut call(url), None).expect("valid");
        let host = prepared.request.headers()[header::HOST].to_str().expect("text").to_owned();
        (host, prepared.request.uri().to_string())
    }

    #[test]
    fn the_request_line_is_the_path_and_the_host_field_has_only_an_unusual_port() {
        assert_eq!(host_and_path("http://Erp.Example"), ("erp.example".into(), "/".into()));
        assert_eq!(host_and_path("https://erp.example:443/a?b=c#d"), ("erp.example".into(), "/a?b=c".into()));
        assert_eq!(host_and_path("http://erp.example:443/a"), ("erp.example:443".into(), "/a".into()));
        assert_eq!(host_and_path("http://erp.example?x=1"), ("erp.example".into(), "/?x=1".into()));
        assert_eq!(host_and_path("http://[::1]:8080/a"), ("[::1]:8080".into(), "/a".into()));
    }

    #[test]
    fn urls_that_could_mean_something_else_are_refused() {
        for url in [
            "erp.example/a",
            "ftp://erp.example/",
            "http://",
            "http:///a",
            "http://user@erp.example/",
            "http://a b/",
            "http://erp.example/\u{e4}",
            "http://erp.example/\r\nX: y",
            "http://erp.example:99999/",
            "http://erp.example:0/",
            "/a",
            "",
        ] {
            assert!(prepare(&mut call(url), None).is_err(), "{url:?}");
        }
    }

    #[test]
    fn header_fields_that_could_split_or_frame_a_request_are_refused_without_showing_the_value() {
        for (name, value) in [
            ("X-A", "top-secret\r\nX-B: c"),
            ("X-A", "top-secret\n"),
            ("X-A", "top-secret\0"),
            ("X A", "top-secret"),
            ("Content-Length", "5"),
            ("Transfer-Encoding", "chunked"),
            ("Connection", "close"),
        ] {
            let mut call = call("http://erp.example/");
            call.headers = vec![(name.to_owned(), value.to_owned())];
            let reason = prepare(&mut call, None).err().expect("refused");
            assert!(!reason.contains("secret"), "{reason}");
        }
    }

    #[test]
    fn no_header_value_is_shown_by_debug() {
        let mut call = call("http://erp.example/?token=top-secret");
        call.headers = vec![("Authorization".to_owned(), "Bearer top-secret".to_owned())];
        call.body = b"top-secret".to_vec();
        assert!(!format!("{call:?}").contains("secret"));
        let prepared = prepare(&mut call, None).expect("valid");
        assert!(!format!("{:?}", prepared.request.headers()).contains("secret"));
    }

    #[test]
    fn through_a_proxy_a_plain_request_names_its_target_and_a_tunnelled_one_does_not() {
        let proxy = Proxy::parse("http://u:p@proxy:3128").expect("valid");
        let plain = prepare(&mut call("http://erp.example/a?b"), Some(&proxy)).expect("valid").request;
        assert_eq!(plain.uri().to_string(), "http://erp.example/a?b");
        assert!(plain.headers().contains_key(header::PROXY_AUTHORIZATION));
        let tunnelled = prepare(&mut call("https://erp.example/a?b"), Some(&proxy)).expect("valid").request;
        assert_eq!(tunnelled.uri().to_string(), "/a?b");
        assert!(!tunnelled.headers().contains_key(header::PROXY_AUTHORIZATION));
    }
}

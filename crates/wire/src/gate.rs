//! The gate: the only place where bytes of a request reach a socket, and so the place that knows whether any did.

use std::cell::{Cell, RefCell};
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Instant;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

/// Set once a byte of a call's request was accepted by the operating system. Never cleared.
#[derive(Clone, Default)]
pub(crate) struct SentFlag(Arc<AtomicBool>);

impl SentFlag {
    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    pub(crate) fn set(&self) {
        self.0.store(true, Ordering::Release);
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// No request on this connection: handshakes, tunnels, and the time between requests.
    Open,
    /// A request was handed over and nothing of it was written.
    Armed,
    /// A byte of the current request was written.
    Sent,
    /// The request's time had passed before its first byte: nothing may be written any more.
    Late,
}

/// One connection's gate.
///
/// | state | write | becomes |
/// |---|---|---|
/// | open | passes | open |
/// | armed, `not_after` not passed | passes | sent if the socket took a byte, else (error, would block) armed |
/// | armed, `not_after` passed | refused | late |
/// | sent | passes | sent |
/// | late | refused | late |
pub(crate) struct Gate {
    state: Cell<State>,
    not_after: Cell<Option<Instant>>,
    sent: RefCell<Option<SentFlag>>,
}

impl Gate {
    pub(crate) fn new() -> Rc<Gate> {
        Rc::new(Gate { state: Cell::new(State::Open), not_after: Cell::new(None), sent: RefCell::new(None) })
    }

    /// From here on writes belong to one request.
    pub(crate) fn arm(&self, not_after: Instant, sent: SentFlag) {
        self.state.set(State::Armed);
        self.not_after.set(Some(not_after));
        *self.sent.borrow_mut() = Some(sent);
    }

    /// The request and its response are over.
    pub(crate) fn disarm(&self) {
        self.state.set(State::Open);
        self.not_after.set(None);
        *self.sent.borrow_mut() = None;
    }

    pub(crate) fn was_late(&self) -> bool {
        self.state.get() == State::Late
    }

    fn pass(&self, write: impl FnOnce() -> Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        match self.state.get() {
            State::Open | State::Sent => return write(),
            State::Late => return Poll::Ready(Err(late())),
            State::Armed => {}
        }
        if self.not_after.get().is_some_and(|not_after| Instant::now() >= not_after) {
            self.state.set(State::Late);
            return Poll::Ready(Err(late()));
        }
        let written = write();
        if matches!(written, Poll::Ready(Ok(bytes)) if bytes > 0) {
            self.state.set(State::Sent);
            if let Some(sent) = self.sent.borrow().as_ref() {
                sent.set();
            }
        }
        written
    }
}

fn late() -> io::Error {
    io::Error::other("the time for the first byte has passed")
}

/// A TCP connection behind its gate. TLS, if any, is above it: what TLS buffers has not left.
pub(crate) struct Gated {
    tcp: TcpStream,
    gate: Rc<Gate>,
}

impl Gated {
    pub(crate) fn new(tcp: TcpStream, gate: Rc<Gate>) -> Gated {
        Gated { tcp, gate }
    }
}

impl AsyncRead for Gated {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_read(cx, buf)
    }
}

impl AsyncWrite for Gated {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        this.gate.pass(|| Pin::new(&mut this.tcp).poll_write(cx, buf))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        this.gate.pass(|| Pin::new(&mut this.tcp).poll_write_vectored(cx, bufs))
    }

    fn is_write_vectored(&self) -> bool {
        self.tcp.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_shutdown(cx)
    }
}

/// What HTTP speaks over: plain, or TLS above the gate.
pub(crate) enum Stream {
    Plain(Gated),
    Tls(Box<TlsStream<Gated>>),
}

impl hyper::rt::Read for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        mut buf: hyper::rt::ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        // SAFETY: `as_mut` gives uninitialised memory; tokio's ReadBuf tracks what is initialised and never
        // de-initialises anything.
        let mut read = ReadBuf::uninit(unsafe { buf.as_mut() });
        let polled = match self.get_mut() {
            Stream::Plain(plain) => Pin::new(plain).poll_read(cx, &mut read),
            Stream::Tls(tls) => Pin::new(tls.as_mut()).poll_read(cx, &mut read),
        };
        if let Poll::Ready(Ok(())) = polled {
            let filled = read.filled().len();
            // SAFETY: ReadBuf says that the first `filled` bytes of the cursor's memory are initialised.
            unsafe { buf.advance(filled) };
        }
        polled
    }
}

impl hyper::rt::Write for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Stream::Plain(plain) => Pin::new(plain).poll_write(cx, buf),
            Stream::Tls(tls) => Pin::new(tls.as_mut()).poll_write(cx, buf),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Plain(plain) => Pin::new(plain).poll_flush(cx),
            Stream::Tls(tls) => Pin::new(tls.as_mut()).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Plain(plain) => Pin::new(plain).poll_shutdown(cx),
            Stream::Tls(tls) => Pin::new(tls.as_mut()).poll_shutdown(cx),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Stream::Plain(plain) => plain.is_write_vectored(),
            Stream::Tls(tls) => tls.is_write_vectored(),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Stream::Plain(plain) => Pin::new(plain).poll_write_vectored(cx, bufs),
            Stream::Tls(tls) => Pin::new(tls.as_mut()).poll_write_vectored(cx, bufs),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn armed(not_after: Instant) -> (Rc<Gate>, SentFlag) {
        let gate = Gate::new();
        let sent = SentFlag::default();
        gate.arm(not_after, sent.clone());
        (gate, sent)
    }

    fn later() -> Instant {
        Instant::now() + Duration::from_secs(3_600)
    }

    #[test]
    fn only_a_byte_that_the_socket_took_counts_as_sent() {
        let (gate, sent) = armed(later());
        assert!(gate.pass(|| Poll::Pending).is_pending());
        assert!(matches!(gate.pass(|| Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()))), Poll::Ready(Err(_))));
        assert!(matches!(gate.pass(|| Poll::Ready(Ok(0))), Poll::Ready(Ok(0))));
        assert!(!sent.is_set());
        assert!(matches!(gate.pass(|| Poll::Ready(Ok(1))), Poll::Ready(Ok(1))));
        assert!(sent.is_set());
        assert!(gate.pass(|| Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()))).is_ready());
        assert!(sent.is_set(), "what was sent stays sent");
    }

    #[test]
    fn a_late_first_byte_is_refused_and_so_is_every_byte_after_it() {
        let (gate, sent) = armed(Instant::now());
        for _ in 0..2 {
            let written = gate.pass(|| panic!("the socket must not be reached"));
            assert!(matches!(written, Poll::Ready(Err(_))));
        }
        assert!(gate.was_late() && !sent.is_set());
    }

    #[test]
    fn a_request_that_has_begun_is_finished_even_when_its_time_passes() {
        let (gate, sent) = armed(later());
        assert!(gate.pass(|| Poll::Ready(Ok(1))).is_ready());
        gate.not_after.set(Some(Instant::now()));
        assert!(matches!(gate.pass(|| Poll::Ready(Ok(5))), Poll::Ready(Ok(5))));
        assert!(sent.is_set() && !gate.was_late());
    }

    #[test]
    fn writes_between_requests_belong_to_no_call() {
        let (gate, sent) = armed(later());
        gate.disarm();
        assert!(matches!(gate.pass(|| Poll::Ready(Ok(5))), Poll::Ready(Ok(5))));
        assert!(!sent.is_set());
    }
}

//! Names to addresses, by the resolver of the operating system, which blocks: on threads of its own, few, and one per
//! name, so that a name that hangs holds one thread however many calls wait for it.

use std::cell::RefCell;
use std::collections::HashMap;
use std::net::{IpAddr, ToSocketAddrs};
use std::rc::Rc;

use tokio::sync::watch;

use crate::limits::{ADDRESSES_MAX, LOOKUPS_MAX};

type Found = Result<Vec<IpAddr>, String>;

/// The lookups under way.
#[derive(Default)]
pub(crate) struct Resolver {
    pending: RefCell<HashMap<String, watch::Receiver<Option<Found>>>>,
}

impl Resolver {
    /// The addresses of a name, in the order of the operating system. May be dropped at any time; the blocking lookup
    /// then ends on its own.
    pub(crate) async fn lookup(self: &Rc<Self>, host: &str) -> Found {
        let mut answer = self.join_or_start(host)?;
        let found = answer.wait_for(Option::is_some).await.map_err(|_| "the name lookup was given up".to_owned())?;
        found.clone().unwrap_or_else(|| Err("the name lookup was given up".to_owned()))
    }

    fn join_or_start(self: &Rc<Self>, host: &str) -> Result<watch::Receiver<Option<Found>>, String> {
        let mut pending = self.pending.borrow_mut();
        if let Some(answer) = pending.get(host) {
            return Ok(answer.clone());
        }
        if pending.len() >= LOOKUPS_MAX {
            return Err("too many name lookups are waiting".to_owned());
        }
        let (sender, answer) = watch::channel(None);
        pending.insert(host.to_owned(), answer.clone());
        drop(pending);
        let resolver = Rc::clone(self);
        let name = host.to_owned();
        tokio::task::spawn_local(async move {
            let asked = name.clone();
            let found = tokio::task::spawn_blocking(move || ask_system(&asked)).await;
            resolver.pending.borrow_mut().remove(&name);
            // Nobody may be waiting any more; that is no error.
            let _ = sender.send(Some(found.unwrap_or_else(|_| Err("the name lookup failed".to_owned()))));
        });
        Ok(answer)
    }
}

fn ask_system(host: &str) -> Found {
    let found = (host, 0_u16).to_socket_addrs().map_err(|error| error.to_string())?;
    let mut addresses: Vec<IpAddr> = Vec::new();
    for address in found.map(|socket| socket.ip()) {
        if addresses.len() < ADDRESSES_MAX && !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    Ok(addresses)
}

//! What leaves a plugin: one guard and one sender for `outboxd:plugin/http` and `wasi:http`.
//!
//! [`policy`] looks at the request alone and is pure, and so is [`addresses`], which looks at an address. [`connector`]
//! resolves a name once and connects only to what `addresses` admitted. [`call`] holds one call's budget, [`sender`] the
//! pool of connections of one grant, [`hooks`] fits it all under `wasi:http`. [`tcp`] is the same guard for raw connections.
//!
//! Absent on purpose: redirects, proxies from the environment, decompression, HTTP/2.

mod addresses;
mod body;
mod call;
mod connector;
mod destination;
mod error;
mod hooks;
mod policy;
mod sender;
mod target;
mod tcp;
mod tls;

pub use addresses::{AddressGuard, faces, is_public};
pub(crate) use body::{AnswerBody, RequestBody, take};
pub(crate) use call::CallEgress;
pub(crate) use connector::{Connector, LOOK_UPS_MAX};
pub use connector::{Resolve, SystemResolver};
pub use destination::{Destination, Host, HostPattern, Scheme};
pub(crate) use error::EgressError;
pub(crate) use hooks::EgressHooks;
pub use policy::EgressPolicy;
pub use sender::Exchange;
pub(crate) use sender::{Egress, Exchanges};
pub(crate) use tcp::LookUp;
pub use tcp::TcpPeer;
pub(crate) use tls::client_config;
pub use tls::{RootsBase, TlsRoots};

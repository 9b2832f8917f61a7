use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};

/// Whose certificates plugins' requests trust.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsRoots {
    pub base: RootsBase,
    /// PEM files with further authorities, beside `base`.
    pub extra_ca: Vec<PathBuf>,
}

impl TlsRoots {
    /// How many authorities that comes to; the text says which file is wrong.
    pub fn count(&self) -> Result<usize, String> {
        store(self).map(|store| store.len())
    }
}

/// Where most authorities come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RootsBase {
    /// Mozilla's, compiled in.
    #[default]
    Webpki,
    /// The machine's own.
    Native,
}

/// The settings of every TLS connection that a plugin's request opens: TLS 1.2 and 1.3, HTTP/1.1.
pub(crate) fn client_config(roots: &TlsRoots) -> Result<Arc<ClientConfig>, String> {
    let store = store(roots)?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| format!("TLS cannot be set up: {error}"))?
        .with_root_certificates(store)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

fn store(roots: &TlsRoots) -> Result<RootCertStore, String> {
    let mut store = RootCertStore::empty();
    match roots.base {
        RootsBase::Webpki => store.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned()),
        RootsBase::Native => {
            store.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
    }
    for path in &roots.extra_ca {
        add_authorities(&mut store, path)?;
    }
    Ok(store)
}

fn add_authorities(store: &mut RootCertStore, path: &Path) -> Result<(), String> {
    let complain = |why: String| format!("extra CA file {path:?}: {why}");
    let certificates = CertificateDer::pem_file_iter(path).map_err(|error| complain(error.to_string()))?;
    let before = store.len();
    for certificate in certificates {
        let certificate = certificate.map_err(|error| complain(error.to_string()))?;
        store.add(certificate).map_err(|error| complain(error.to_string()))?;
    }
    if store.len() == before { Err(complain("no certificate in it".into())) } else { Ok(()) }
}

use std::sync::{Arc, Mutex, PoisonError};

use secrecy::{ExposeSecret, SecretString};

/// Strikes the secrets that one call sent out of whatever text comes back: a target that echoes a request's headers would
/// otherwise carry them into logs, error texts and the outbox table. Clones share their state.
#[derive(Clone, Default)]
pub(crate) struct Redactor(Arc<Mutex<Vec<SecretString>>>);

/// Shorter values would strike out ordinary text.
const BYTES_MIN: usize = 6;

impl Redactor {
    /// Strikes out `secret` from now on.
    pub(crate) fn watch(&self, secret: &SecretString) {
        let mut watched = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = watched.iter().any(|other| other.expose_secret() == secret.expose_secret());
        if !known && secret.expose_secret().len() >= BYTES_MIN {
            watched.push(secret.clone());
        }
    }

    pub(crate) fn strike_out(&self, text: &str) -> String {
        let watched = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        watched.iter().fold(text.to_string(), |text, secret| text.replace(secret.expose_secret(), "[secret]"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_echoed_secret_is_struck_out() {
        let redactor = Redactor::default();
        redactor.watch(&SecretString::from("s3cr3t-value"));

        assert_eq!(redactor.strike_out("authorization: Bearer s3cr3t-value!"), "authorization: Bearer [secret]!");
    }
}

//! What is signed, and how a signature is written.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// The bytes that a signature covers: id, second of sending and body. A receiver so notices a changed body, and can
/// refuse an old request that somebody sends again. The dots part the three unmistakably: an id, a UUID, has none.
pub fn signed_content(id: &str, timestamp: u64, body: &[u8]) -> Vec<u8> {
    let mut content = format!("{id}.{timestamp}.").into_bytes();
    content.extend_from_slice(body);
    content
}

/// A symmetric signature: an HMAC-SHA-256 over [`signed_content`].
pub fn v1(mac: &[u8]) -> String {
    format!("v1,{}", STANDARD.encode(mac))
}

/// An asymmetric signature: Ed25519 over [`signed_content`].
pub fn v1a(signature: &[u8]) -> String {
    format!("v1a,{}", STANDARD.encode(signature))
}

#[cfg(test)]
mod tests {
    use hmac::{Hmac, KeyInit, Mac};

    use super::*;

    /// The example that Standard Webhooks' own libraries are tested with.
    #[test]
    fn the_signature_is_the_one_of_the_standard_example() {
        let key = STANDARD.decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        let content = signed_content("msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, br#"{"test": 2432232314}"#);

        let mac = Hmac::<sha2::Sha256>::new_from_slice(&key).unwrap().chain_update(&content).finalize().into_bytes();

        assert_eq!(v1(&mac), "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }
}

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwap;
use base64::Engine as _;
use base64::alphabet;
use base64::engine::DecodePaddingMode;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig};
use ed25519_dalek::{Signer, SigningKey};
use hmac::{Hmac, KeyInit, Mac};
use secrecy::{ExposeSecret, SecretString};
use sha2::Sha256;

/// Keys are handed out with and without padding.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// The operator's secrets by name. Values never show themselves: not in `Debug`, errors or logs.
/// Clones share their values, so that a rotated one reaches every plugin.
#[derive(Clone, Default)]
pub struct Secrets(Arc<ArcSwap<BTreeMap<String, SecretString>>>);

impl Secrets {
    pub(crate) fn get(&self, name: &str) -> Option<SecretString> {
        self.0.load().get(name).cloned()
    }

    /// The names, for messages to people.
    pub fn names(&self) -> Vec<String> {
        self.0.load().keys().cloned().collect()
    }

    /// Takes the values of `other`, here and in every clone. A call under way uses them from its next look on.
    pub fn replace_with(&self, other: &Secrets) {
        self.0.store(other.0.load_full());
    }
}

impl FromIterator<(String, String)> for Secrets {
    fn from_iter<I: IntoIterator<Item = (String, String)>>(secrets: I) -> Self {
        let secrets = secrets.into_iter().map(|(name, value)| (name, SecretString::from(value))).collect();
        Secrets(Arc::new(ArcSwap::from_pointee(secrets)))
    }
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.load().keys()).finish()
    }
}

/// The secret is no key of the kind that was asked for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct WrongKind;

/// HMAC-SHA-256 over `data`. A secret written `whsec_…` (as webhook services hand them out) is decoded from base64 first;
/// one written `whsk_…` is a private key, and none for this.
pub(crate) fn hmac_sha256(secret: &SecretString, data: &[u8]) -> Result<[u8; 32], WrongKind> {
    let text = secret.expose_secret();
    let trimmed = text.trim();
    let key = match trimmed.strip_prefix("whsec_") {
        Some(encoded) => BASE64.decode(encoded).map_err(|_| WrongKind)?,
        None if trimmed.starts_with("whsk_") => return Err(WrongKind),
        None => text.as_bytes().to_vec(),
    };
    if key.is_empty() {
        return Err(WrongKind);
    }
    let mut mac = Hmac::<Sha256>::new_from_slice(&key).map_err(|_| WrongKind)?;
    mac.update(data);
    Ok(mac.finalize().into_bytes().into())
}

/// An Ed25519 signature over `data`. The secret is a seed of 32 bytes in base64, or `whsk_…`; 64 bytes are seed and public key.
pub(crate) fn ed25519(secret: &SecretString, data: &[u8]) -> Result<[u8; 64], WrongKind> {
    let text = secret.expose_secret().trim();
    let encoded = text.strip_prefix("whsk_").unwrap_or(text);
    let bytes = BASE64.decode(encoded).map_err(|_| WrongKind)?;
    let seed: [u8; 32] = match bytes.len() {
        32 | 64 => bytes[..32].try_into().map_err(|_| WrongKind)?,
        _ => return Err(WrongKind),
    };
    Ok(SigningKey::from_bytes(&seed).sign(data).to_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn hmac_agrees_with_rfc_4231() {
        let mac = hmac_sha256(&SecretString::from("Jefe"), b"what do ya want for nothing?").unwrap();

        assert_eq!(hex(&mac), "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
    }

    #[test]
    fn a_webhook_secret_is_decoded_before_it_signs() {
        // The example of the Standard Webhooks specification.
        let secret = SecretString::from("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw");
        let data = b"msg_p5jXN8AQM9LWM0D4loKWxJek.1614265330.{\"test\": 2432232314}";

        let mac = hmac_sha256(&secret, data).unwrap();
        let unpadded = hmac_sha256(&SecretString::from("whsec_a2V5cw"), b"");
        let spaced = hmac_sha256(&SecretString::from(" whsec_a2V5cw\n"), b"");

        assert_eq!(unpadded, hmac_sha256(&SecretString::from("keys"), b""));
        assert_eq!(spaced, unpadded);
        assert_eq!(BASE64.encode(mac), "g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    #[test]
    fn ed25519_agrees_with_rfc_8032() {
        let seed: Vec<u8> = (0..32)
            .map(|i| {
                u8::from_str_radix(
                    &"9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60"[2 * i..2 * i + 2],
                    16,
                )
            })
            .collect::<Result<_, _>>()
            .unwrap();
        let secret = SecretString::from(format!("whsk_{}", BASE64.encode(seed)));

        let signature = ed25519(&secret, b"").unwrap();

        assert!(hex(&signature).starts_with("e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e06522490155"));
    }

    #[test]
    fn a_secret_that_is_no_key_is_of_the_wrong_kind() {
        assert_eq!(ed25519(&SecretString::from("too short"), b""), Err(WrongKind));
        assert_eq!(hmac_sha256(&SecretString::from("whsec_%%%"), b""), Err(WrongKind));
        assert_eq!(hmac_sha256(&SecretString::from("whsec_"), b""), Err(WrongKind));
        for private in [
            "whsk_nWGxne/9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A=",
            " whsk_nWGxne/9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A=\n",
        ] {
            assert_eq!(hmac_sha256(&SecretString::from(private), b""), Err(WrongKind));
        }
    }

    #[test]
    fn debug_shows_names_and_no_values() {
        let secrets: Secrets = [("API_KEY".to_string(), "hunter2-value".to_string())].into_iter().collect();

        assert_eq!(format!("{secrets:?}"), r#"["API_KEY"]"#);
    }
}

use std::collections::BTreeMap;
use std::fmt;

use minisign_verify::{Error, PublicKey, Signature};

use super::folder::Content;

/// Which contents may be loaded at all: `[trust]` of `outboxd.toml`. By default whatever lies in the folder.
#[derive(Clone, Debug, Default)]
pub struct Trust {
    /// For each plugin's name the digests that may be loaded, as `outboxd plugin check` shows them.
    pub pins: BTreeMap<String, Vec<String>>,
    /// Whether a plugin without a pin is refused. Default false.
    pub require_pins: bool,
    /// Whose signature every component must carry, in `NAME.wasm.minisig`. Default: nobody's.
    pub minisign_key: Option<MinisignKey>,
}

/// A public key as minisign writes it: the second line of `minisign.pub`.
#[derive(Clone, Debug)]
pub struct MinisignKey {
    text: String,
    key: PublicKey,
}

impl MinisignKey {
    /// The text says what is wrong with it.
    pub fn parse(text: &str) -> Result<MinisignKey, String> {
        let key = PublicKey::from_base64(text)
            .map_err(|_| format!("{text:?} is no public key of minisign; write the second line of minisign.pub"))?;
        Ok(MinisignKey { text: text.into(), key })
    }
}

impl fmt::Display for MinisignKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Trust {
    /// Refuses what is not to be loaded; the text says why.
    pub(crate) fn admit(&self, name: &str, content: &Content) -> Result<(), String> {
        match self.pins.get(name) {
            Some(pins) if !pins.contains(&content.digest) => {
                return Err(format!("its digest {} is not among its pins in [trust.pins]", content.digest));
            }
            None if self.require_pins => {
                return Err("it has no pin, and [trust] require_pins is set; add its digest to [trust.pins]".into());
            }
            Some(_) | None => {}
        }
        match &self.minisign_key {
            Some(MinisignKey { key, .. }) => check_signature(key, name, content),
            None => Ok(()),
        }
    }
}

fn check_signature(key: &PublicKey, name: &str, content: &Content) -> Result<(), String> {
    let file = format!("{name}.wasm.minisig");
    let Some(text) = &content.signature else {
        return Err(format!("it is not signed, and [trust] minisign_key asks for it; put {file} beside it"));
    };
    let signature = Signature::decode(text).map_err(|error| format!("{file} is no signature by minisign: {error}"))?;
    // Also what `minisign -l` makes: plain Ed25519 over the whole file.
    match key.verify(&content.component, &signature, true) {
        Ok(()) => Ok(()),
        Err(Error::UnexpectedKeyId) => Err(format!("{file} is by another key than [trust] minisign_key")),
        Err(error) => Err(format!("{file} does not fit it: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Made by minisign for a file that holds the word "test".
    const KEY: &str = "RWQf6LRCGA9i53mlYecO4IzT51TGPpvWucNSCh1CBM0QTaLn73Y7GFO3";
    const SIGNATURE: &str = "untrusted comment: signature from minisign secret key
RUQf6LRCGA9i559r3g7V1qNyJDApGip8MfqcadIgT9CuhV3EMhHoN1mGTkUidF/z7SrlQgXdy8ofjb7bNJJylDOocrCo8KLzZwo=
trusted comment: timestamp:1633700835\tfile:test\tprehashed
wLMDjy9FLAuxZ3q4NlEvkgtyhrr0gtTu6KC4KBJdITbbOeAi1zBIYo0v4iTgt8jJpIidRJnp94ABQkJAgAooBQ==";

    fn content(component: &'static str, signature: Option<&str>) -> Content {
        Content::new(component.into(), None).signed(signature.map(str::to_owned))
    }

    #[test]
    fn by_default_everything_is_admitted() {
        assert_eq!(Trust::default().admit("shop", &content("test", None)), Ok(()));
    }

    #[test]
    fn a_pinned_plugin_is_admitted_with_one_of_its_digests_and_its_manifest_counts() {
        let (first, second) = (content("first", None), content("second", None));
        let pins = vec![first.digest.clone(), second.digest.clone()];
        let trust = Trust { pins: [("shop".into(), pins)].into(), ..Trust::default() };

        assert_eq!(trust.admit("shop", &first), Ok(()));
        assert_eq!(trust.admit("shop", &second), Ok(()));
        assert_eq!(trust.admit("other", &content("third", None)), Ok(()));
        let third = trust.admit("shop", &content("third", None)).unwrap_err();
        assert!(third.contains("not among its pins"), "{third}");
        let granted_more = Content::new("first".into(), Some("topics = [\"*\"]".into()));
        assert!(trust.admit("shop", &granted_more).is_err());
    }

    #[test]
    fn where_pins_are_required_a_plugin_without_one_is_refused() {
        let trust = Trust { require_pins: true, ..Trust::default() };

        let refusal = trust.admit("shop", &content("test", None)).unwrap_err();

        assert!(refusal.contains("[trust.pins]"), "{refusal}");
    }

    #[test]
    fn where_a_key_is_given_only_what_it_signed_is_admitted() {
        let by = |key: &str| Trust { minisign_key: Some(MinisignKey::parse(key).unwrap()), ..Trust::default() };
        let trust = by(KEY);

        assert_eq!(trust.admit("shop", &content("test", Some(SIGNATURE))), Ok(()));
        for (trust, content, words) in [
            (&trust, content("test", None), "put shop.wasm.minisig beside it"),
            (&trust, content("test", Some("nonsense")), "is no signature by minisign"),
            (&trust, content("tesT", Some(SIGNATURE)), "does not fit it"),
            (&by(&KEY.replace("RWQf", "RWQA")), content("test", Some(SIGNATURE)), "by another key"),
        ] {
            let refusal = trust.admit("shop", &content).unwrap_err();
            assert!(refusal.contains(words), "{refusal}");
        }
    }

    #[test]
    fn what_is_no_key_is_refused() {
        assert!(MinisignKey::parse("RWQf6LRC").unwrap_err().contains("no public key of minisign"));
        assert_eq!(MinisignKey::parse(KEY).unwrap().to_string(), KEY);
    }
}

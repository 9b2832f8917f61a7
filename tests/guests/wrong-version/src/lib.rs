//! A plugin of a contract version that the host does not have.

wit_bindgen::generate!({ path: "wit", world: "plugin" });

struct WrongVersion;

export!(WrongVersion);

impl exports::outboxd::plugin::handler::Guest for WrongVersion {
    fn handle(_: exports::outboxd::plugin::handler::Message) -> Result<(), String> {
        Ok(())
    }
}

//! Reads its message as JSON and succeeds: what `tests/bench` measures, as it does the same in other languages.

use serde_json::Value;

wit_bindgen::generate!({ path: "../../../wit/v1", world: "plugin", generate_all });

use exports::outboxd::plugin::handler::{Failure, Guest, Message};

struct Parse;

export!(Parse);

impl Guest for Parse {
    fn handle(message: Message) -> Result<(), Failure> {
        match serde_json::from_slice::<Value>(&message.payload) {
            Ok(order) if order["do"] == "succeed" => Ok(()),
            _ => Err(Failure::Cancel("no such message was sent".into())),
        }
    }
}

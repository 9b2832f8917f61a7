//! Adds each message to a stream of Redis, once, over a connection that a reused instance keeps.

mod resp;

use std::cell::RefCell;
use std::io;

use outboxd_plugin::{Failure, Message, optional_setting, retry, setting};
use resp::{Connection, Reply};

outboxd_plugin::raw_handler!(deliver);

/// One round trip: a message that comes again while its id is remembered adds nothing. A script is not rolled back, so what was
/// not added is forgotten again. The two keys share a hash tag, so that a cluster has them in one place.
const ADD_ONCE: &str = "\
if not redis.call('set', KEYS[2], '', 'NX', 'EX', ARGV[1]) then return '' end
local added = redis.pcall('xadd', KEYS[1], 'MAXLEN', '~', ARGV[2], '*', unpack(ARGV, 3))
if added.err then redis.call('del', KEYS[2]) end
return added";

thread_local! {
    /// Of the message before, where the manifest asks for reuse.
    static KEPT: RefCell<Option<Connection>> = const { RefCell::new(None) };
}

fn deliver(message: &Message) -> Result<(), Failure> {
    let stream = optional_setting("stream").unwrap_or_else(|| message.topic.clone());
    let remembered = format!("{{{stream}}}:outboxd:{}", message.id);
    let seconds = optional_setting("remember_seconds").unwrap_or_else(|| "86400".into());
    let length = optional_setting("length").unwrap_or_else(|| "1000000".into());
    let created = message.created_at_ms.to_string();
    let mut command: Vec<&[u8]> = vec![b"EVAL", ADD_ONCE.as_bytes(), b"2", stream.as_bytes(), remembered.as_bytes()];
    command.extend([seconds.as_bytes(), length.as_bytes()]);
    command.extend([&b"id"[..], message.id.as_bytes(), b"topic", message.topic.as_bytes()]);
    if let Some(key) = &message.key {
        command.extend([&b"key"[..], key.as_bytes()]);
    }
    command.extend([&b"created_at_ms"[..], created.as_bytes(), b"payload", &message.payload]);
    match ask(&command)? {
        Reply::Text(_) => Ok(()),
        // What Redis refuses now, for want of memory, a primary or a right, it may take later: nothing here is the message's fault.
        Reply::Error(why) => Err(retry(format!("Redis answered: {why}"), None)),
    }
}

/// Sends one command. A kept connection may have ended since: then a new one is tried, once.
fn ask(command: &[&[u8]]) -> Result<Reply, Failure> {
    let kept = KEPT.take();
    let answered = kept.and_then(|mut kept| kept.ask(command).ok().map(|reply| (kept, reply)));
    let (connection, reply) = match answered {
        Some(answered) => answered,
        None => {
            let address = setting("address")?;
            let broken = |error: io::Error| retry(format!("Redis at {address} did not answer: {error}"), None);
            let mut connection = Connection::open(&address).map_err(broken)?;
            if let Some(password) = optional_setting("password") {
                let user = optional_setting("user").unwrap_or_else(|| "default".into());
                let greeting = [b"AUTH", user.as_bytes(), password.as_bytes()];
                if let Reply::Error(why) = connection.ask(&greeting).map_err(broken)? {
                    return Err(retry(format!("Redis does not let {user} in: {why}"), None));
                }
            }
            let reply = connection.ask(command).map_err(broken)?;
            (connection, reply)
        }
    };
    KEPT.set(Some(connection));
    Ok(reply)
}

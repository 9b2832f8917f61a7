use outboxd_plugin::{Failure, Message, cancel, http, retry, setting};

#[derive(serde::Deserialize, serde::Serialize)]
struct Order {
    id: u64,
    total: f64,
}

outboxd_plugin::handler!(deliver);

fn deliver(order: Order, _message: &Message) -> Result<(), Failure> {
    if order.total < 0.0 {
        return Err(cancel("an order cannot cost less than nothing"));
    }
    let answer = http::post(&setting("url")?).json(&order)?.send()?;
    match answer.status {
        200..=299 => Ok(()),
        // "Not now": the target says when, or the topic's backoff does.
        429 | 500..=599 => Err(retry(format!("HTTP {}", answer.status), answer.retry_after())),
        status => Err(cancel(format!("HTTP {status}: {}", answer.text()))),
    }
}

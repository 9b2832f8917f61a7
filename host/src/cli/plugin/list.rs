use std::time::{Duration, UNIX_EPOCH};

use serde_json::Value;

use crate::cli::args::Global;
use crate::cli::settings::{self, WrongSettings};
use crate::cli::{output, relay_api};
use crate::config::{Overrides, Purpose};

/// How long a relay may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);

pub async fn list(global: &Global, admin: Option<String>, json: bool) -> anyhow::Result<()> {
    let config = settings::load(global, Overrides { admin, ..Overrides::default() }, Purpose::Outbox)?;
    let Some(address) = config.admin else {
        return Err(WrongSettings::one("the relay's admin address is \"off\"; give the one to ask by --admin"));
    };
    let plugins = relay_api::get(address, "/api/plugins", config.admin_token.as_ref(), PATIENCE).await?;
    if json {
        return output::json(&plugins);
    }
    let rows: Vec<Vec<String>> = plugins.as_array().into_iter().flatten().map(row).collect();
    if rows.is_empty() {
        output::line("no plugins");
        return Ok(());
    }
    let head =
        ["name", "state", "topics", "reaches", "secrets", "limits", "digest", "loaded", "calls", "faults", "error"];
    output::line(output::table(&head, &rows));
    Ok(())
}

fn row(plugin: &Value) -> Vec<String> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let items = |value: &Value, scheme: &str| {
        let items = value.as_array().into_iter().flatten().filter_map(Value::as_str);
        items.map(|item| format!("{scheme}{item}")).collect::<Vec<_>>()
    };
    let list = |value: &Value| items(value, "").join(" ");
    let number = |value: &Value| value.as_u64().map(|number| number.to_string()).unwrap_or_default();
    let short = |digest: &Value| text(digest).chars().take(12).collect::<String>();
    let reaches = [("hosts", ""), ("private_networks", ""), ("tcp", "tcp://")];
    let reaches = reaches.map(|(grants, scheme)| items(&plugin[grants], scheme)).concat();
    let canary = &plugin["canary"];
    let (limits, loaded) = (&plugin["limits"], plugin["loaded_at_ms"].as_u64());
    let limits = match (limits["memory_bytes"].as_u64(), limits["cpu_ms"].as_u64(), limits["deadline_ms"].as_u64()) {
        (Some(memory), Some(cpu), Some(deadline)) => {
            let [cpu, deadline] = [cpu, deadline].map(|ms| humantime::format_duration(Duration::from_millis(ms)));
            format!("{} MiB, {cpu} of {deadline}", memory >> 20)
        }
        _ => String::new(),
    };
    let loaded = loaded.map(|ms| humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_millis(ms)).to_string());
    let errors = match (plugin["error"].as_str(), plugin["last_error"].as_str()) {
        (Some(file), _) => file,
        (None, last) => last.unwrap_or_default(),
    };
    vec![
        text(&plugin["name"]),
        text(&plugin["state"]),
        list(&plugin["topics"]),
        reaches.join(" "),
        list(&plugin["secrets"]),
        limits,
        if canary["digest"].is_string() {
            let (digest, canary_digest) = (short(&plugin["digest"]), short(&canary["digest"]));
            format!("{digest}, on trial {canary_digest}: {} calls, {} faults", canary["calls"], canary["faults"])
        } else if plugin["state"] == "parked" && plugin["previous"].is_string() {
            format!("{}, before it {}", short(&plugin["digest"]), short(&plugin["previous"]))
        } else {
            short(&plugin["digest"])
        },
        loaded.unwrap_or_default(),
        number(&plugin["calls"]),
        number(&plugin["faults"]),
        errors.to_owned(),
    ]
}

//! Messages: a list to choose from, and the whole story of one.

use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::response::Html;
use maud::{Markup, html};
use outboxd_core::{Reason, State as MessageState};
use outboxd_store::{HistoryEntry, MessageDetail, MessageSummary};

use super::layout::{Notice, link, moment, page, text};
use super::{Admin, Problem, Trouble};
use crate::admin::query::{ListQuery, parse_id};
use crate::times::span;

/// Messages on one page.
const PAGE: u32 = 50;

impl ListQuery {
    fn link(&self, after: Option<&str>) -> String {
        let query = [
            ("state", self.state.as_deref()),
            ("topic", self.topic.as_deref()),
            ("reason", self.reason.as_deref()),
            ("after", after),
        ];
        link("/messages", &query)
    }
}

pub async fn list(
    State(admin): State<Admin>,
    query: Result<Query<ListQuery>, QueryRejection>,
    notice: Result<Query<Notice>, QueryRejection>,
) -> Result<Html<String>, Trouble> {
    let (Query(query), Query(notice)) = (query?, notice?);
    let (filter, after) = query.filter()?;
    // One more than is shown tells whether there is a next page.
    let mut messages = admin.store.list(&filter, after, PAGE + 1).await?;
    let next = messages.len() > PAGE as usize;
    messages.truncate(PAGE as usize);
    let next = messages.last().filter(|_| next).map(|last| query.link(Some(&last.id)));
    let body = html! {
        h1 { @if filter.state == Some(MessageState::Dead) { "Dead letters" } @else { "Messages" } }
        (filter_form(&query))
        @if messages.is_empty() { p { "No messages match." } } @else { (selection_form(&query, &messages)) }
        nav aria-label="Pages of the list" {
            @if query.after.is_some() { a href=(query.link(None)) { "First page" } " " }
            @if let Some(next) = next { a rel="next" href=(next) { "Older messages" } }
        }
        (filter_actions(&query))
    };
    Ok(page("Messages · outboxd", notice.text(), body))
}

fn filter_form(query: &ListQuery) -> Markup {
    let option = |value: &'static str, chosen: &Option<String>| {
        html! { option value=(value) selected[chosen.as_deref() == Some(value)] { (value) } }
    };
    html! {
        form.filter method="get" action="/messages" {
            label { "State " select name="state" {
                option value="" { "any" }
                @for state in MessageState::ALL { (option(state.as_str(), &query.state)) }
            } }
            label { "Topic " input name="topic" value=(query.topic.as_deref().unwrap_or_default()); }
            label { "Reason " select name="reason" {
                option value="" { "any" }
                @for reason in Reason::ALL { (option(reason.as_str(), &query.reason)) }
            } }
            button { "Show" }
        }
    }
}

fn selection_form(query: &ListQuery, messages: &[MessageSummary]) -> Markup {
    html! {
        form method="post" {
            input type="hidden" name="back" value=(query.link(query.after.as_deref()));
            ul.rows {
                @for message in messages { (row(message)) }
            }
            div.actions role="group" aria-label="With the chosen messages" {
                span { "Chosen: " }
                (buttons())
            }
        }
    }
}

fn buttons() -> Markup {
    html! {
        button formaction="/do/messages/redrive" { "Redrive" } " "
        button formaction="/do/messages/retry-now" { "Retry now" } " "
        button.harsh formaction="/do/messages/discard" { "Discard" }
    }
}

fn row(message: &MessageSummary) -> Markup {
    html! {
        li {
            input type="checkbox" name="id" value=(message.id) aria-label={ "Choose " (message.id) };
            div {
                a href={ "/messages/" (message.id) } { (text(&message.topic, 200)) } " "
                span.tag.bad[message.state == "dead"] { (text(&message.state, 40)) } " "
                @if let Some(reason) = &message.reason { b { (text(reason, 100)) } " " }
                @if let Some(key) = &message.key { span.hint { "key " (text(key, 100)) " " } }
                span.hint { "attempts " (message.attempts) ", published " (moment(message.created_at_ms)) }
                @if let Some(error) = &message.last_error { div.error { (text(error, 300)) } }
            }
        }
    }
}

/// For all that match, not only those on the screen: folded away, so that nobody hits it by mistake.
fn filter_actions(query: &ListQuery) -> Markup {
    let is_given = query.topic.is_some() || query.reason.is_some();
    html! {
        details {
            summary { "Do it with all that match the filter" }
            p.hint {
                "Redrive takes dead letters, retry now pending messages, discard pending and held ones. The state above does not matter. "
                @if !is_given { "Neither topic nor reason is chosen: this is every topic." }
            }
            form method="post" {
                input type="hidden" name="back" value=(query.link(None));
                input type="hidden" name="topic" value=(query.topic.as_deref().unwrap_or_default());
                input type="hidden" name="reason" value=(query.reason.as_deref().unwrap_or_default());
                input type="hidden" name="all" value="true";
                (buttons())
            }
        }
    }
}

pub async fn show(
    State(admin): State<Admin>,
    id: Result<Path<String>, PathRejection>,
    notice: Result<Query<Notice>, QueryRejection>,
) -> Result<Html<String>, Trouble> {
    let (Path(id), Query(notice)) = (id?, notice?);
    let message = admin.store.show(parse_id(&id)?).await?;
    let message = message.ok_or_else(|| Problem::Missing(format!("there is no message {id}")))?;
    Ok(page("Message · outboxd", notice.text(), story(&message)))
}

fn story(message: &MessageDetail) -> Markup {
    let summary = &message.summary;
    let optional = |name: &str, value: &Option<String>| {
        html! { @if let Some(value) = value { dt { (name) } dd { (text(value, 8 << 10)) } } }
    };
    let when = |name: &str, at: Option<i64>| html! { @if let Some(at) = at { dt { (name) } dd { (moment(at)) } } };
    html! {
        h1 { "Message of " (text(&summary.topic, 200)) }
        form.actions method="post" {
            input type="hidden" name="id" value=(summary.id);
            input type="hidden" name="back" value={ "/messages/" (summary.id) };
            @match summary.state.as_str() {
                "dead" => button formaction="/do/messages/redrive" { "Redrive" },
                "delivered" => {},
                state => {
                    @if state == "pending" { button formaction="/do/messages/retry-now" { "Retry now" } " " }
                    button.harsh formaction="/do/messages/discard" { "Discard" }
                },
            }
        }
        dl.facts {
            dt { "id" } dd { code { (text(&summary.id, 100)) } }
            dt { "state" } dd { span.tag.bad[summary.state == "dead"] { (text(&summary.state, 40)) } }
            (optional("reason", &summary.reason))
            @if let Some(error) = &summary.last_error { dt { "error" } dd.error { (text(error, 8 << 10)) } }
            (optional("key", &summary.key))
            (optional("dedup key", &message.dedup_key))
            dt { "attempts" } dd { (summary.attempts) ", leases lost " (summary.lapses) }
            (when("published", Some(summary.created_at_ms)))
            @if summary.state == "pending" { (when("due", Some(summary.available_at_ms))) }
            @if summary.state == "processing" { (when("lease ends", Some(summary.available_at_ms))) }
            (when("expires", summary.expires_at_ms))
            (when("delivered", summary.delivered_at_ms))
            (when("died", summary.dead_at_ms))
        }
        h2 { "Attempts" }
        @if message.history.is_empty() { p { "No attempt yet." } }
        ol.log { @for entry in &message.history { li { (attempt(entry)) } } }
        h2 { "Payload" }
        @match &message.payload {
            Some(payload) => pre tabindex="0" aria-label="Payload" { (text(payload, 64 << 10)) },
            None => p { (message.payload_bytes) " bytes: too large to show." },
        }
        @if message.headers.as_object().is_some_and(|headers| !headers.is_empty()) {
            h2 { "Headers" }
            dl.facts {
                @for (name, value) in message.headers.as_object().into_iter().flatten() {
                    dt { (text(name, 200)) }
                    dd { (text(value.as_str().unwrap_or(&value.to_string()), 2000)) }
                }
            }
        }
    }
}

fn attempt(entry: &HistoryEntry) -> Markup {
    html! {
        b { "Attempt " (entry.attempt) } " " (moment(entry.at_ms)) ": " (text(&entry.result, 40)) " after " (span(entry.took_ms))
        @if let Some(reason) = &entry.reason { ", " b { (text(reason, 100)) } }
        @if let Some(status) = entry.http_status { ", the target answered " (status) }
        @if let Some(digest) = &entry.digest { ", plugin " code { (text(&digest.chars().take(12).collect::<String>(), 50)) } }
        @if let Some(error) = &entry.error { div.error { (text(error, 2000)) } }
        @if let Some(response) = &entry.response { div.hint { "answer: " (text(response, 2000)) } }
    }
}

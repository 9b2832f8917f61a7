//! The keys of topics that are ordered or limited by key: which wait, why, since when, and letting one go on.

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::response::Html;
use maud::{Markup, html};
use outboxd_store::{KeyState, KeySummary};

use super::layout::{Notice, link, moment, page, text};
use super::{Admin, Trouble};
use crate::admin::query::KeysQuery;
use crate::times::span;

/// Keys on one page.
const LIMIT: u32 = 100;

pub async fn show(
    State(admin): State<Admin>,
    query: Result<Query<KeysQuery>, QueryRejection>,
    notice: Result<Query<Notice>, QueryRejection>,
) -> Result<Html<String>, Trouble> {
    let (Query(query), Query(notice)) = (query?, notice?);
    let keys = admin.store.keys(&query.filter()?, LIMIT).await?;
    let back = link("/keys", &[("topic", query.topic.as_deref()), ("state", query.state.as_deref())]);
    let body = html! {
        h1 { "Keys" }
        p.hint { "Of topics that are ordered or limited by key, those that wait longest first; " (LIMIT) " at most." }
        (filter(&query))
        @if keys.is_empty() { p { "No key." } }
        ul.rows {
            @for key in &keys { (row(key, &back)) }
        }
    };
    Ok(page("Keys - outboxd", notice.text(), body))
}

fn filter(query: &KeysQuery) -> Markup {
    html! {
        form.filter method="get" action="/keys" {
            label { "State " select name="state" {
                option value="" { "any" }
                @for state in KeyState::ALL {
                    option value=(state.as_str()) selected[query.state.as_deref() == Some(state.as_str())] { (state.as_str()) }
                }
            } }
            label { "Topic " input name="topic" value=(query.topic.as_deref().unwrap_or_default()); }
            button { "Show" }
        }
    }
}

fn row(key: &KeySummary, back: &str) -> Markup {
    let blocked = key.state == KeyState::Blocked.as_str();
    html! {
        li {
            div {
                b { (text(&key.key, 200)) } " "
                span.tag.bad[blocked] { (key.state) } " "
                span.hint {
                    (text(&key.topic, 200)) ", since " (moment(key.since_ms))
                    @if let Some(due_in_ms) = key.due_in_ms { ", due in " (span(due_in_ms)) }
                    ", " (key.depth) " behind"
                }
                @if let Some(reason) = &key.reason { " " b { (text(reason, 100)) } }
                @if let Some(head) = &key.head {
                    " " a href={ "/messages/" (head) } { "the message at its head" }
                    @if let Some(error) = &key.error { div.error { (text(error, 300)) } }
                }
                @if blocked || key.due_in_ms.is_some() {
                    form method="post" {
                        input type="hidden" name="topic" value=(key.topic);
                        input type="hidden" name="key" value=(key.key);
                        input type="hidden" name="back" value=(back);
                        @if blocked {
                            button formaction="/do/keys/skip" { "Go on without it" }
                        } @else {
                            button formaction="/do/keys/resume-key" { "Go on now" }
                        }
                    }
                    @if let Some(head) = key.head.as_ref().filter(|_| blocked) {
                        form method="post" {
                            input type="hidden" name="id" value=(head);
                            input type="hidden" name="back" value=(back);
                            button formaction="/do/messages/redrive" { "Redrive it" }
                        }
                    }
                }
            }
        }
    }
}

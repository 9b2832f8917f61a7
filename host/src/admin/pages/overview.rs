//! The first page: what is stuck, why, since when, and what to do.

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::response::Html;
use maud::{Markup, html};
use outboxd_store::{Listening, SnapshotHolder};

use super::layout::{Notice, link, moment, page, text};
use super::{Admin, Trouble};
use crate::admin::topics::{Topic, by_need};
use crate::metrics::{Failure, SLOT, SLOTS, Series, Snapshot};
use crate::plugin::PluginInfo;
use crate::times::span;

pub async fn show(
    State(admin): State<Admin>,
    notice: Result<Query<Notice>, QueryRejection>,
) -> Result<Html<String>, Trouble> {
    let Query(notice) = notice?;
    let (topics, plugins, failures) = (by_need(&admin), (admin.plugins)(), admin.recent.failures());
    let body = html! {
        h1 { "Overview" }
        div #live-topics data-live {
            (counted(&admin.snapshot.load()))
            (topic_table(&admin, &topics))
        }
        section aria-labelledby="failures" {
            h2 #failures { "Latest failures on this relay" }
            p.hint {
                "Attempts that did not deliver, newest first, as they happen here. Other relays show their own; "
                a href="/messages?state=dead" { "dead letters" } " are those of all."
            }
            div #live-failures data-live { (failure_list(&failures)) }
        }
        section aria-labelledby="plugins" {
            h2 #plugins { "Plugins" }
            div #live-plugins data-live { (plugin_list(&plugins)) }
        }
    };
    Ok(page("outboxd", notice.text(), body))
}

/// How old the numbers are, and whether new ones can be had.
fn counted(snapshot: &Snapshot) -> Markup {
    html! {
        @if !snapshot.answers() { p.problem { "The database does not answer." } }
        @if snapshot.answers() && snapshot.listening == Listening::Lost {
            p.problem { "Notifications do not reach this relay: it finds new messages by polling alone." }
        }
        @if let Some(holder) = snapshot.holder.as_ref().filter(|holder| is_old(holder)) {
            p.problem { "Dead rows cannot be removed, and claims get slower: the oldest snapshot is held "
                (text(&holder.told(), 400)) }
        }
        @match snapshot.counted_at {
            Some(at) => {
                p.hint { "Counted " (span(at.elapsed().as_secs() * 1000)) " ago." }
                @if snapshot.topics.is_empty() { p { "No messages yet." } }
            },
            None => p.hint { "Nothing has been counted yet." },
        }
    }
}

/// Old enough to be said: doctor's default.
fn is_old(holder: &SnapshotHolder) -> bool {
    holder.age_s.is_some_and(|age| age > 60.0)
}

fn topic_table(admin: &Admin, topics: &[Topic]) -> Markup {
    html! {
        ul.cards {
            @for topic in topics { (topic_card(topic, admin.recent.series(&topic.stats.topic))) }
        }
    }
}

fn topic_card(topic: &Topic, series: Option<Series>) -> Markup {
    let stats = &topic.stats;
    let states = [
        ("pending", stats.pending),
        ("processing", stats.processing),
        ("held", stats.held),
        ("delivered", stats.delivered),
        ("dead", stats.dead),
    ];
    html! {
        li.card.stuck[topic.is_stuck()] {
            h3 { (text(&stats.topic, 200)) }
            @if stats.paused { p.problem { "Paused: nothing of it is claimed until it is resumed." } }
            @if topic.parked { p.problem { "Parked: its plugin is unhealthy. Messages wait and spend no attempt." } }
            @if topic.unrouted && stats.live() > 0 { p.problem { "Unrouted: no plugin of this relay handles it. Messages wait." } }
            @if stats.blocked_keys > 0 {
                p.problem {
                    a href=(link("/keys", &[("topic", Some(&stats.topic)), ("state", Some("blocked"))])) {
                        "Keys blocked by a dead letter: " (stats.blocked_keys)
                    }
                }
            }
            @if stats.resting_keys > 0 {
                p {
                    a href=(link("/keys", &[("topic", Some(&stats.topic)), ("state", Some("paused"))])) {
                        "Keys whose target rests: " (stats.resting_keys)
                    }
                }
            }
            dl.counts {
                @for (state, count) in states {
                    div.bad[state == "dead" && count > 0] {
                        dt { (state) }
                        dd { a href=(link("/messages", &[("topic", Some(&stats.topic)), ("state", Some(state))])) { (count) } }
                    }
                }
                div { dt { "oldest due" } dd { (stats.oldest_due_ms.map_or("none".to_owned(), span)) } }
            }
            @if let Some(series) = series { (sparkline(&series)) }
            @if let Some(error) = stats.last_error.as_ref().filter(|_| stats.live() + stats.dead > 0) {
                p.error { (text(error, 500)) }
            }
            form method="post" {
                input type="hidden" name="topic" value=(stats.topic);
                input type="hidden" name="back" value="/";
                @if stats.paused {
                    button formaction="/do/topics/resume" { "Resume " span.unseen { (text(&stats.topic, 200)) } }
                } @else {
                    button formaction="/do/topics/pause" { "Pause " span.unseen { (text(&stats.topic, 200)) } }
                }
                @if stats.dead > 0 {
                    " " button formaction="/do/messages/redrive" { "Redrive all " (stats.dead) " dead" }
                }
            }
        }
    }
}

/// What was delivered, above the line, and what failed, below it.
fn sparkline(series: &Series) -> Markup {
    const HALF: u64 = 20;
    let most = series.delivered.iter().chain(&series.failed).copied().max().unwrap_or(0).max(1);
    let (delivered, failed) = (series.delivered.iter().sum::<u64>(), series.failed.iter().sum::<u64>());
    let minutes = SLOT.as_secs() * SLOTS as u64 / 60;
    let height = |count: u64| if count == 0 { 0 } else { (count * HALF / most).max(1) };
    let says = format!("{delivered} delivered and {failed} failed on this relay in the last {minutes} minutes");
    html! {
        svg.spark role="img" aria-label=(says) viewBox={ "0 0 " (SLOTS * 4) " " (2 * HALF + 1) } preserveAspectRatio="none" {
            rect.line x="0" y=(HALF) width=(SLOTS * 4) height="1" {}
            @for (slot, (delivered, failed)) in series.delivered.iter().zip(&series.failed).enumerate() {
                @if *delivered > 0 {
                    rect.good x=(slot * 4) y=(HALF - height(*delivered)) width="3" height=(height(*delivered)) {}
                }
                @if *failed > 0 { rect.bad x=(slot * 4) y=(HALF + 1) width="3" height=(height(*failed)) {} }
            }
        }
        p.hint { (says) "." }
    }
}

fn failure_list(failures: &[Failure]) -> Markup {
    html! {
        @if failures.is_empty() { p { "None since this relay started." } }
        ol.log {
            @for failure in failures {
                li {
                    (moment(failure.at_ms)) " "
                    a href={ "/messages/" (failure.id) } { (text(&failure.topic, 100)) } " "
                    b { (text(&failure.reason, 40)) } " "
                    span.error { (text(&failure.error, 500)) }
                }
            }
        }
    }
}

/// What it is granted, in one line.
fn reaches(plugin: &PluginInfo) -> String {
    let grants = plugin.hosts.iter().chain(&plugin.private_networks).cloned();
    let grants = grants.chain(plugin.tcp.iter().map(|peer| format!("tcp://{peer}")));
    let grants: Vec<String> = grants.chain(plugin.secrets.iter().map(|name| format!("secret {name}"))).collect();
    if grants.is_empty() { "nothing".into() } else { grants.join(", ") }
}

fn plugin_list(plugins: &[PluginInfo]) -> Markup {
    html! {
        @if plugins.is_empty() { p { "The plugin folder has no component: every topic is unrouted." } }
        ul.cards {
            @for plugin in plugins {
                li.card.stuck[plugin.state == "bad" || plugin.state == "parked"] {
                    h3 { (text(&plugin.name, 100)) " " small.tag { (plugin.state) } }
                    dl.facts {
                        dt { "topics" } dd { (text(&plugin.topics.join(", "), 1000)) }
                        dt { "reaches" } dd { (text(&reaches(plugin), 1000)) }
                        dt { "digest" } dd { code { (text(plugin.digest.as_deref().unwrap_or("none"), 100)) } }
                        dt { "calls" } dd { (plugin.calls) ", " (plugin.faults) " by its own fault failed" }
                        @if let Some(at) = plugin.loaded_at_ms { dt { "loaded" } dd { (moment(at as i64)) } }
                        @if let Some(canary) = &plugin.canary {
                            dt { "on trial" }
                            dd { code { (text(&canary.digest, 100)) } ": " (canary.calls) " calls, " (canary.faults) " faults" }
                        }
                        @if let Some(error) = &plugin.error { dt { "the file" } dd.error { (text(error, 2000)) } }
                        @if let Some(error) = &plugin.last_error { dt { "last error" } dd.error { (text(error, 2000)) } }
                    }
                }
            }
        }
    }
}

//! The admin page in a real browser, against the real binary: each action clicked, hostile text shown, other sites refused.

use std::sync::{Mutex, MutexGuard, PoisonError};

use outboxd_test_support::browser::Browser;
use outboxd_test_support::receiver::{Answer, Receiver};
use outboxd_test_support::{skip, wait_for};
use serde_json::json;

use crate::stage::{PATIENCE, RelayProcess, Stage};

const XSS: &str = include_str!("../admin/xss_corpus.txt");

/// One browser at a time: each is several processes.
fn browser() -> Option<(MutexGuard<'static, ()>, Browser)> {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let browser = Browser::start();
    if browser.is_none() {
        skip("the page's tests need Chromium: install chromium");
    }
    Some((turn, browser?))
}

/// A relay with its page; answers the page's port.
fn relay(stage: &Stage) -> (RelayProcess, String) {
    let relay = stage.relay_with(&["--admin", "127.0.0.1:0"]);
    let port = relay.admin().replace("127.0.0.1:", "");
    (relay, port)
}

/// Opens `url` again and again until the page says `text`: the relay counts every few seconds.
fn open_until(browser: &mut Browser, url: &str, text: &str) {
    let said = wait_for(PATIENCE, || {
        browser.open(url);
        browser.text().contains(text)
    });
    assert!(said, "{url} never said {text:?}:\n{}", browser.text());
}

/// Writes what is on the screen to `docs/images/NAME.png`, where `docs/admin.md` shows it, when asked to by
/// `OUTBOXD_SCREENSHOTS=1`.
fn picture(browser: &mut Browser, name: &str) {
    if std::env::var_os("OUTBOXD_SCREENSHOTS").is_some() {
        browser.resize(1000, 760);
        let folder = outboxd_test_support::repository().join("docs/images");
        std::fs::create_dir_all(&folder).expect("the folder");
        std::fs::write(folder.join(name).with_extension("png"), browser.screenshot()).expect("the picture");
    }
}

fn each_action_works(stage: &Stage, scripts: bool) {
    let Some((_turn, mut browser)) = browser() else { return };
    browser.call("Emulation.setScriptExecutionDisabled", json!({ "value": !scripts }));
    stage.install_verbs("");
    let cancel = |reason: &str| json!({ "do": "cancel", "reason": reason }).to_string();
    let dead = [stage.publish("verbs", &cancel("gone")), stage.publish("verbs", &cancel("gone too"))];
    let waiting: Vec<String> = (0..3).map(|n| stage.publish("unrouted", &n.to_string())).collect();
    let (_relay, port) = relay(stage);
    let site = format!("http://127.0.0.1:{port}");
    for id in &dead {
        stage.wait_until(id, "dead");
    }

    open_until(&mut browser, &site, "Redrive all 2 dead");
    assert!(browser.text().contains("Unrouted: no plugin of this relay handles it."), "{}", browser.text());
    // Of this relay itself: what it delivered and failed, and the latest failures.
    assert!(browser.text().contains("0 delivered and 2 failed on this relay in the last 10 minutes."));
    let failures = browser.evaluate("document.querySelector('#live-failures').innerText");
    let failures = failures.as_str().unwrap_or_default();
    assert!(["verbs", "cancelled", "gone too"].iter().all(|word| failures.contains(word)), "{failures}");
    let bars = browser.evaluate("document.querySelectorAll('.spark .bad').length");
    assert!(bars.as_u64().is_some_and(|bars| bars > 0), "{bars}");
    picture(&mut browser, "overview");
    browser.press("[formaction='/do/topics/pause']");
    assert!(browser.text().contains("The topic is paused, on every relay."), "{}", browser.text());

    browser.open(&format!("{site}/messages/{}", dead[0]));
    assert!(browser.text().contains("Attempt 1"), "{}", browser.text());
    picture(&mut browser, "message");
    browser.press("[formaction='/do/messages/redrive']");
    assert!(browser.text().contains("Redriven: 1."), "{}", browser.text());

    browser.open(&format!("{site}/messages?topic=unrouted"));
    browser.evaluate(&format!("document.querySelector(\"[value='{}']\").click()", waiting[0]));
    browser.press("form [formaction='/do/messages/retry-now']");
    assert!(browser.text().contains("Due now: 1."), "{}", browser.text());
    browser.evaluate(&format!("document.querySelector(\"[value='{}']\").click()", waiting[0]));
    browser.press("form [formaction='/do/messages/discard']");
    assert!(browser.text().contains("Discarded: 1."), "{}", browser.text());
    browser.evaluate("document.querySelector('summary').click()");
    browser.press("details [formaction='/do/messages/discard']");
    assert!(browser.text().contains("Discarded: 2."), "{}", browser.text());
    for id in &waiting {
        assert_eq!(stage.show(id)["reason"], "discarded");
    }

    browser.open(&format!("{site}/messages?state=dead&reason=discarded"));
    picture(&mut browser, "dead-letters");
    browser.evaluate("document.querySelector('summary').click()");
    browser.press("details [formaction='/do/messages/redrive']");
    assert!(browser.text().contains("Redriven: 3."), "{}", browser.text());

    stage.outboxd(&["pause", "unrouted"]);
    open_until(&mut browser, &site, "Paused: ");
    browser.press("[formaction='/do/topics/resume']");
    assert!(browser.text().contains("The topic is resumed."), "{}", browser.text());
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

#[test]
fn each_action_works_in_a_browser_on_sqlite() {
    each_action_works(&Stage::sqlite(), true);
}

#[test]
fn each_action_works_without_script_on_postgres() {
    each_action_works(&Stage::postgres(), false);
}

#[test]
fn hostile_text_runs_nothing_in_a_browser() {
    let Some((_turn, mut browser)) = browser() else { return };
    let stage = Stage::sqlite();
    stage.install_verbs("");
    let mut last = String::new();
    for text in XSS.lines() {
        // As topic, key, header and payload; then as what a plugin answers.
        let payload = json!(text).to_string();
        let header = format!("x-hostile={text}");
        stage.outboxd(&["publish", text, "--key", text, "--header", &header, "--payload", &payload]).ok();
        last = stage.publish("verbs", &json!({ "do": "cancel", "reason": text }).to_string());
    }
    let (_relay, port) = relay(&stage);
    let site = format!("http://127.0.0.1:{port}");
    stage.wait_until(&last, "dead");

    open_until(&mut browser, &site, "javascript:alert(1)");
    let ids: Vec<String> = serde_json::from_str::<Vec<serde_json::Value>>(
        &stage.outboxd(&["messages", "list", "--limit", "120", "--json"]).ok(),
    )
    .expect("JSON")
    .iter()
    .map(|message| message["id"].as_str().expect("an id").to_owned())
    .collect();
    assert_eq!(ids.len(), 120);
    for path in ["messages".to_owned()].into_iter().chain(ids.iter().map(|id| format!("messages/{id}"))) {
        browser.open(&format!("{site}/{path}"));
    }

    assert_eq!(browser.complaints(), Vec::<String>::new());
}

#[test]
fn another_site_in_the_same_browser_changes_nothing() {
    let Some((_turn, mut browser)) = browser() else { return };
    let stage = Stage::sqlite();
    let id = stage.publish("unrouted", "{}");
    let receiver = Receiver::start();
    receiver.answer(|_| Answer::status(200).header("content-type", "text/html"));
    let (_relay, port) = relay(&stage);
    let elsewhere = receiver.url("/").replace("127.0.0.1", "evil.example");
    let discard = format!(
        "{{ const form = document.createElement('form'); form.method = 'post'; \
         form.action = 'http://127.0.0.1:{port}/do/messages/discard'; \
         form.innerHTML = '<input name=id value={id}>'; document.documentElement.append(form); form.submit(); }}"
    );

    browser.open(&elsewhere);
    browser.and_load(|browser| {
        browser.evaluate(&discard);
    });
    assert!(browser.text().contains("requests of other sites are not served"), "{}", browser.text());
    // By a name that was made to point here.
    browser.open(&format!("http://evil.example:{port}/"));
    assert!(browser.text().contains("the Host of this request is not served here"), "{}", browser.text());
    assert_eq!(stage.show(&id)["state"], "pending");

    // The same form on the page itself works: the refusals are not for another reason.
    browser.open(&format!("http://127.0.0.1:{port}/"));
    browser.and_load(|browser| {
        browser.evaluate(&discard);
    });
    assert_eq!(stage.show(&id)["state"], "dead");
}

#[test]
fn the_page_works_on_a_small_screen_and_by_keyboard_alone() {
    let Some((_turn, mut browser)) = browser() else { return };
    let stage = Stage::sqlite();
    let long = "a-topic-with-a-name-that-has-no-place-to-break-and-is-longer-than-any-small-screen-is-wide";
    let id = stage.publish(long, &json!({ "text": "x".repeat(500) }).to_string());
    let (_relay, port) = relay(&stage);
    let site = format!("http://127.0.0.1:{port}");
    browser.resize(360, 740);

    open_until(&mut browser, &site, long);
    for path in ["", "messages", &format!("messages/{id}")] {
        browser.open(&format!("{site}/{path}"));
        assert_eq!(browser.evaluate("document.documentElement.scrollWidth"), 360, "/{path} scrolls sideways");
    }

    let background = "getComputedStyle(document.body).backgroundColor";
    assert_eq!(browser.evaluate(background), "rgb(255, 255, 255)");
    let dark = json!({ "features": [{ "name": "prefers-color-scheme", "value": "dark" }] });
    browser.call("Emulation.setEmulatedMedia", dark);
    assert_eq!(browser.evaluate(background), "rgb(18, 22, 28)", "dark where the system is");

    browser.open(&site);
    browser.key("Tab", 9, "");
    assert_eq!(browser.evaluate("document.activeElement.textContent"), "Skip to the content");
    let on_pause = "document.activeElement.getAttribute('formaction') === '/do/topics/pause'";
    let presses = (0..100).take_while(|_| {
        browser.key("Tab", 9, "");
        browser.evaluate(on_pause) != true
    });
    let presses = presses.count();
    assert!(presses < 100, "the keyboard never reached the button");
    assert_ne!(browser.evaluate("getComputedStyle(document.activeElement).outlineStyle"), "none");
    browser.and_load(|browser| browser.key("Enter", 13, "\r"));
    assert!(browser.text().contains("The topic is paused, on every relay."), "{}", browser.text());
}

#[test]
fn the_overview_shows_what_is_new_without_being_opened_again() {
    let Some((_turn, mut browser)) = browser() else { return };
    let stage = Stage::sqlite();
    let (_relay, port) = relay(&stage);
    browser.open(&format!("http://127.0.0.1:{port}"));
    assert!(!browser.text().contains("published-later"), "{}", browser.text());

    stage.publish("published-later", "{}");

    assert!(wait_for(PATIENCE, || browser.text().contains("published-later")), "{}", browser.text());
}

#[test]
fn the_documented_request_redrives() {
    let stage = Stage::sqlite();
    let id = stage.publish("orders.created", "{}");
    stage.outboxd(&["messages", "discard", &id]).ok();
    let (_relay, port) = relay(&stage);
    let docs = include_str!("../../docs/admin.md");
    let (_, block) = docs.split_once("```sh\n").expect("a block of commands");
    let (command, _) = block.split_once("```").expect("its end");

    let mut shell = std::process::Command::new("sh");
    let output = shell.args(["-euc", &command.replace(":8787", &format!(":{port}"))]).output().expect("sh runs");

    assert_eq!(String::from_utf8_lossy(&output.stdout), r#"{"changed":1,"more":false}"#, "{output:?}");
    assert_eq!(stage.show(&id)["state"], "pending");
}

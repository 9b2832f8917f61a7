//! A headless Chromium, driven over its DevTools protocol: one tab, and everything that it complains of.

use std::io::{BufRead as _, BufReader};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tempfile::TempDir;
use tungstenite::stream::MaybeTlsStream;
use tungstenite::{Message, WebSocket};

use crate::process::Starter;

const PATIENCE: Duration = Duration::from_secs(60);
const PROGRAMS: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "chrome"];

/// A tab of a browser that ends with the value. The name `evil.example` leads to 127.0.0.1 in it.
pub struct Browser {
    child: Child,
    socket: WebSocket<MaybeTlsStream<TcpStream>>,
    session: Option<String>,
    calls: u64,
    events: Vec<Value>,
    // Removed after the browser has ended.
    _profile: TempDir,
    // The browser ends with it, also when the start of this panics.
    _starter: Starter,
}

impl Browser {
    /// Nothing where no Chromium is installed.
    pub fn start() -> Option<Browser> {
        let profile = TempDir::new().expect("a folder for the browser");
        let starter = Starter::new();
        let mut child = PROGRAMS.iter().find_map(|program| {
            let mut command = Command::new(program);
            command
                .args(["--headless=new", "--remote-debugging-port=0", "--disable-gpu", "--disable-dev-shm-usage"])
                // Tests run as root in containers, where its own sandbox cannot start; only pages of ours are opened.
                .args(["--no-sandbox", "--no-first-run", "--disable-background-networking", "--hide-scrollbars"])
                .arg("--host-resolver-rules=MAP evil.example 127.0.0.1")
                .arg(format!("--user-data-dir={}", profile.path().display()))
                .arg("about:blank")
                .env("HOME", profile.path())
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::piped());
            starter.start(command).ok()
        })?;
        let mut lines = BufReader::new(child.stderr.take().expect("a pipe")).lines();
        let url =
            lines.by_ref().find_map(|line| Some(line.ok()?.strip_prefix("DevTools listening on ")?.trim().to_owned()));
        // A pipe that nobody reads would stop the browser once it is full.
        std::thread::spawn(move || lines.for_each(drop));
        let url = url.expect("the browser says where it listens");
        let (socket, _) = tungstenite::connect(url.as_str()).expect("the browser answers");
        if let MaybeTlsStream::Plain(stream) = socket.get_ref() {
            stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        }
        let mut browser =
            Browser { child, socket, session: None, calls: 0, events: vec![], _profile: profile, _starter: starter };
        let target = browser.call("Target.createTarget", json!({ "url": "about:blank" }));
        let attach = json!({ "targetId": target["targetId"], "flatten": true });
        let session = browser.call("Target.attachToTarget", attach);
        browser.session = session["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page", "Runtime", "Log"] {
            browser.call(&format!("{domain}.enable"), json!({}));
        }
        Some(browser)
    }

    /// Carries one command of the protocol out.
    pub fn call(&mut self, method: &str, parameters: Value) -> Value {
        self.calls += 1;
        let id = self.calls;
        let mut command = json!({ "id": id, "method": method, "params": parameters });
        if let Some(session) = &self.session {
            command["sessionId"] = json!(session);
        }
        self.socket.send(Message::text(command.to_string())).expect("the browser listens");
        loop {
            let message = self.read();
            if message["id"] == id {
                assert!(message.get("error").is_none(), "{method}: {message}");
                return message["result"].clone();
            }
            self.events.push(message);
        }
    }

    fn read(&mut self) -> Value {
        loop {
            if let Message::Text(text) = self.socket.read().expect("the browser answers in time") {
                return serde_json::from_str(&text).expect("JSON");
            }
        }
    }

    /// Opens `url` and waits until it is loaded.
    pub fn open(&mut self, url: &str) {
        self.and_load(|browser| {
            browser.call("Page.navigate", json!({ "url": url }));
        });
    }

    /// Does what leads to another page, and waits until that is loaded.
    pub fn and_load(&mut self, leave: impl FnOnce(&mut Browser)) {
        let seen = self.events.len();
        leave(self);
        let deadline = Instant::now() + PATIENCE;
        while !self.events[seen..].iter().any(|event| event["method"] == "Page.loadEventFired") {
            assert!(Instant::now() < deadline, "the page never loaded");
            let event = self.read();
            self.events.push(event);
        }
    }

    /// The value of a JavaScript expression in the page.
    pub fn evaluate(&mut self, expression: &str) -> Value {
        let parameters = json!({ "expression": expression, "returnByValue": true, "awaitPromise": true });
        let answer = self.call("Runtime.evaluate", parameters);
        assert!(answer.get("exceptionDetails").is_none(), "{expression}: {answer}");
        answer["result"]["value"].clone()
    }

    pub fn text(&mut self) -> String {
        self.evaluate("document.body.innerText").as_str().unwrap_or_default().to_owned()
    }

    /// Presses the button that `css` finds, as its form's own, and waits for the page that follows.
    pub fn press(&mut self, css: &str) {
        let expression = format!("document.querySelector({}).click()", json!(css));
        self.and_load(|browser| {
            browser.evaluate(&expression);
        });
    }

    pub fn key(&mut self, name: &str, code: u32, text: &str) {
        for kind in ["keyDown", "keyUp"] {
            let text = if kind == "keyDown" { text } else { "" };
            let key = json!({ "type": kind, "key": name, "code": name, "windowsVirtualKeyCode": code, "text": text });
            self.call("Input.dispatchKeyEvent", key);
        }
    }

    /// The size of the screen. CSS pixels.
    pub fn resize(&mut self, width: u32, height: u32) {
        let size = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600 });
        self.call("Emulation.setDeviceMetricsOverride", size);
    }

    /// What is on the screen, as a PNG.
    pub fn screenshot(&mut self) -> Vec<u8> {
        let picture = self.call("Page.captureScreenshot", json!({ "format": "png" }));
        STANDARD.decode(picture["data"].as_str().expect("a picture")).expect("base64")
    }

    /// Everything the pages complained of since the start: dialogs, exceptions, errors in the console and in the log, where
    /// violations of the content policy stand.
    pub fn complaints(&mut self) -> Vec<String> {
        // Whatever was on its way has come once this is answered.
        self.evaluate("0");
        let is_complaint = |event: &&Value| match event["method"].as_str().unwrap_or_default() {
            "Page.javascriptDialogOpening" | "Runtime.exceptionThrown" => true,
            "Log.entryAdded" => event["params"]["entry"]["level"] == "error",
            "Runtime.consoleAPICalled" => event["params"]["type"] == "error",
            _ => false,
        };
        self.events.iter().filter(is_complaint).map(Value::to_string).collect()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

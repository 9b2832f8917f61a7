// Posts each message as a line of text to a Slack channel, through an incoming webhook.
import { send } from "outboxd:plugin/http@1.0.0";
import { get } from "wasi:config/store@0.2.0-rc.1";

const TEXT = "*{topic}* {payload}";
// Slack cuts longer texts off.
const TEXT_MAX = 40_000;

export const handler = {
  handle(message) {
    const url = get("url");
    if (!url) throw retry("setting `url` is missing: the incoming webhook's address, in [settings] of the manifest");
    const body = JSON.stringify({ text: fill(get("text") ?? TEXT, message).slice(0, TEXT_MAX) });
    const response = post(url, body);
    if (response.status >= 200 && response.status < 300) return;

    const reason = `Slack answered ${response.status}: ${decode(response.body).slice(0, 200)}`;
    if (response.status === 429 || response.status >= 500) throw retry(reason, retryAfter(response.headers));
    // A wrong text, a channel that is archived, a webhook that was removed: the next try would fail the same way.
    throw { tag: "cancel", val: reason };
  },
};

function post(url, body) {
  const headers = [["content-type", "application/json"]];
  try {
    return send({ method: "POST", url, headers, body: encode(body), timeoutMs: undefined });
  } catch (error) {
    const { tag, val } = error.payload ?? error;
    throw retry(`Slack did not answer: ${tag ?? error}${val ? `: ${val}` : ""}`);
  }
}

function retry(reason, afterMs) {
  return { tag: "retry", val: { reason, afterMs } };
}

/** Seconds, as Slack writes them, in milliseconds; anything else asks for nothing. */
function retryAfter(headers) {
  const value = headers.find(([name]) => name.toLowerCase() === "retry-after")?.[1] ?? "";
  return /^\d{1,6}$/.test(value) ? Number(value) * 1000 : undefined;
}

/** `{topic}`, `{key}`, `{id}`, `{payload}`, and `{a.b}` for a field of the payload; what is not there stays empty. */
function fill(template, message) {
  const payload = decode(message.payload);
  const fields = { topic: message.topic, key: message.key, id: message.id, payload };
  let json;
  return template.replace(/\{([^{}]+)\}/g, (_, path) => {
    const value = Object.hasOwn(fields, path)
      ? fields[path]
      : path.split(".").reduce((inner, name) => inner?.[name], (json ??= parsed(payload)));
    return escaped(typeof value === "object" && value ? JSON.stringify(value) : String(value ?? ""));
  });
}

/** A payload that is no JSON has no fields, and never will. */
function parsed(payload) {
  try {
    return JSON.parse(payload);
  } catch (error) {
    throw { tag: "cancel", val: `the payload is no JSON: ${error}` };
  }
}

/** Slack's three control characters: a message must not mention a channel or make a link. */
function escaped(text) {
  return text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
}

// QuickJS has no TextEncoder and TextDecoder.
function decode(bytes) {
  let text = "";
  for (const byte of bytes) text += "%" + byte.toString(16).padStart(2, "0");
  try {
    return decodeURIComponent(text);
  } catch {
    return String.fromCharCode(...bytes.slice(0, 1000));
  }
}

function encode(text) {
  return Uint8Array.from(unescape(encodeURIComponent(text)), (character) => character.charCodeAt(0));
}

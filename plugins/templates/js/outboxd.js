// @ts-check
// The contract in a form that is short to use. Yours to change; outboxd.d.ts has the types.
import { idempotencyKey, traceparent } from 'outboxd:plugin/context@1.0.0';
import { send } from 'outboxd:plugin/http@1.0.0';
import { get } from 'wasi:config/store@0.2.0-rc.1';

/** Never try again: the message is dead, with this text as its error. Throw it. */
export const cancel = (reason) => ({ tag: 'cancel', val: reason });

/** Try again, after so many milliseconds where the target says it, else by the topic's backoff. Throw it. */
export const retry = (reason, afterMs) => ({ tag: 'retry', val: { reason, afterMs } });

/** The payload. One that is no JSON never becomes right. */
export function jsonOf(message) {
  try {
    return JSON.parse(textOf(message.payload));
  } catch (error) {
    throw cancel(`the payload is not what this plugin reads: ${error}`);
  }
}

/** A value of `[settings]` in the manifest. Its absence is the operator's to correct, so the message waits. */
export function setting(name) {
  const value = get(name);
  if (value === undefined || value === null) throw retry(`the manifest has no "${name}" in [settings]`);
  return value;
}

/** POSTs JSON, with the message's id as idempotency key. Where no answer comes the message is tried again. */
export function post(url, value, moreHeaders = {}) {
  const headers = [['content-type', 'application/json'], ['idempotency-key', idempotencyKey()], ...Object.entries(moreHeaders)];
  const parent = traceparent();
  if (parent) headers.push(['traceparent', parent]);
  const { status, headers: answered, body } = sent({ method: 'POST', url, headers, body: bytesOf(JSON.stringify(value)) });
  const after = answered.find(([name]) => name === 'retry-after')?.[1] ?? '';
  return { status, headers: answered, text: textOf(body), retryAfterMs: /^\d{1,6}$/.test(after) ? Number(after) * 1000 : undefined };
}

function sent(request) {
  try {
    return send(request);
  } catch (error) {
    const { tag, val } = error?.payload ?? error ?? {};
    throw retry(`no answer: ${tag ?? error}${val === undefined ? '' : `: ${val}`}`);
  }
}

// QuickJS has no TextEncoder and no TextDecoder.
function bytesOf(text) {
  return Uint8Array.from(unescape(encodeURIComponent(text)), (char) => char.charCodeAt(0));
}

function textOf(bytes) {
  let text = '';
  for (const byte of bytes) text += String.fromCharCode(byte);
  try {
    return decodeURIComponent(escape(text));
  } catch {
    return text;
  }
}

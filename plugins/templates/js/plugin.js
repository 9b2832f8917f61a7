// @ts-check
import { cancel, jsonOf, post, retry, setting } from './outboxd.js';

export const handler = {
  /** @param {import('./outboxd').Message} message */
  handle(message) {
    const order = jsonOf(message);
    if (order.total < 0) throw cancel('an order cannot cost less than nothing');

    const answer = post(setting('url'), order);
    if (answer.status < 300) return;
    // "Not now": the target says when, or the topic's backoff does.
    if (answer.status === 429 || answer.status >= 500) throw retry(`HTTP ${answer.status}`, answer.retryAfterMs);
    throw cancel(`HTTP ${answer.status}: ${answer.text}`);
  },
};

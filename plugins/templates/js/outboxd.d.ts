// Types of outboxd.js, and of the contract's imports that it leaves to you.

export interface Message {
  /** A UUID, the same on every attempt. */
  id: string;
  topic: string;
  key?: string;
  /** The producer's very bytes: JSON. */
  payload: Uint8Array;
  headers: [string, string][];
  /** Counted from 1. */
  attempt: number;
  createdAtMs: number;
}

export type Failure = { tag: 'cancel'; val: string } | { tag: 'retry'; val: { reason: string; afterMs?: number } };

export interface Answer {
  status: number;
  /** Names in lower case. */
  headers: [string, string][];
  text: string;
  /** Where the answer has `retry-after` as a number of seconds. */
  retryAfterMs?: number;
}

export function cancel(reason: string): Failure;
export function retry(reason: string, afterMs?: number): Failure;
export function jsonOf(message: Message): any;
export function setting(name: string): string;
export function post(url: string, value: unknown, moreHeaders?: Record<string, string>): Answer;

declare module 'outboxd:plugin/context@1.0.0' {
  /** The attempt that is the last, or nothing where the policy has no end. */
  export function maxAttempts(): number | undefined;
  /** Until the host ends this call. */
  export function deadlineMs(): number;
  export function idempotencyKey(): string;
  export function traceparent(): string | undefined;
}

declare module 'outboxd:plugin/secrets@1.0.0' {
  /** Throws `unavailable` or `wrong-kind`. */
  export function hmacSha256(secret: string, data: Uint8Array): Uint8Array;
  export function ed25519(secret: string, data: Uint8Array): Uint8Array;
}

declare module 'outboxd:plugin/http@1.0.0' {
  export interface Request {
    method: string;
    url: string;
    headers: [string, string][];
    body: Uint8Array;
    timeoutMs?: number;
  }
  export function send(request: Request): { status: number; headers: [string, string][]; body: Uint8Array };
}

declare module 'wasi:config/store@0.2.0-rc.1' {
  export function get(key: string): string | undefined;
  export function getAll(): [string, string][];
}

declare module 'wasi:logging/logging@0.1.0-draft' {
  export type Level = 'trace' | 'debug' | 'info' | 'warn' | 'error' | 'critical';
  export function log(level: Level, context: string, message: string): void;
}

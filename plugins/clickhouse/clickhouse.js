// Inserts each message's payload as a row into a table of ClickHouse, over its HTTP interface.
import { send } from "outboxd:plugin/http@1.0.0";
import { get } from "wasi:config/store@0.2.0-rc.1";

export const handler = {
  handle(message) {
    const [url, table] = [setting("url"), setting("table")];
    const query = `INSERT INTO ${table} SETTINGS input_format_skip_unknown_fields = ${get("skip_unknown_fields") === "true" ? 1 : 0} FORMAT JSONEachRow`;
    const headers = [
      ["x-clickhouse-user", get("user") ?? "default"],
      // Filled in by the host, on the way out.
      ["x-clickhouse-key", "{{secret:CLICKHOUSE_KEY}}"],
    ];
    // A message that comes again is the same block to ClickHouse, and inserted once.
    const target = `${url}/?query=${encodeURIComponent(query)}&insert_deduplication_token=${message.id}`;
    const response = post(target, headers, message.payload);
    if (response.status === 200) return;

    const exception = header(response, "x-clickhouse-exception-code");
    const reason = `ClickHouse answered ${response.status}: ${decode(response.body).slice(0, 300)}`;
    // What the row itself is to blame for. The rest (no such table, wrong key, overload) can get better.
    if (ROW_IS_WRONG.has(exception)) throw { tag: "cancel", val: reason };
    throw retry(reason);
  },
};

// CANNOT_PARSE_TEXT, INCORRECT_DATA, UNKNOWN_FIELD_FOUND_INPUT… : ClickHouse's src/Common/ErrorCodes.cpp.
const ROW_IS_WRONG = new Set(["6", "26", "27", "38", "41", "69", "72", "117", "130", "131"]);

function setting(name) {
  const value = get(name);
  if (!value) throw retry(`setting \`${name}\` is missing, in [settings] of the manifest`);
  return value;
}

function post(url, headers, body) {
  try {
    return send({ method: "POST", url, headers, body, timeoutMs: undefined });
  } catch (error) {
    const { tag, val } = error.payload ?? error;
    throw retry(`ClickHouse did not answer: ${tag ?? error}${val ? `: ${val}` : ""}`);
  }
}

function header(response, name) {
  return response.headers.find(([known]) => known.toLowerCase() === name)?.[1];
}

function retry(reason) {
  return { tag: "retry", val: { reason, afterMs: undefined } };
}

// QuickJS has no TextDecoder. An error text is short and mostly ASCII.
function decode(bytes) {
  return String.fromCharCode(...bytes.slice(0, 300)).trim();
}

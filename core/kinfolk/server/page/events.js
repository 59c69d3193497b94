// Server-sent events over fetch: EventSource cannot send a key.

/** Divides a stream of text into events; `take` gets the data of each. */
export class EventParser {
  constructor(take) {
    this.take = take;
    this.rest = "";
  }

  feed(text) {
    const blocks = (this.rest + text).split("\n\n");
    this.rest = blocks.pop();
    for (const block of blocks) {
      const data = block
        .split("\n")
        .filter((row) => row.startsWith("data:"))
        .map((row) => row.slice(5).replace(/^ /, ""));
      if (data.length) this.take(data.join("\n"));
    }
  }
}

export class NeedsKey extends Error {}

/** Read events until the stream ends; `alive` is called for every piece of it, pings too. */
export async function readEvents(url, key, take, alive, signal) {
  const headers = { Accept: "text/event-stream" };
  if (key) headers.Authorization = `Bearer ${key}`;
  const response = await fetch(url, { headers, signal, cache: "no-store" });
  if (response.status === 401) throw new NeedsKey();
  if (!response.ok) throw new Error(`the server answers ${response.status}`);
  const decoder = new TextDecoder();
  const parser = new EventParser((data) => take(JSON.parse(data)));
  const reader = response.body.getReader();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    alive();
    parser.feed(decoder.decode(value, { stream: true }));
  }
}

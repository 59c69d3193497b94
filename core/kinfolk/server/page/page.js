// Listens to the server and draws what it says; tries again when the connection is lost.

import { NeedsKey, readEvents } from "./events.js";
import { draw } from "./view.js";

const KEY = "kinfolk-api-key";
const SILENCE_MS = 40000; // the server says something every 15 s
const FIRST_RETRY_MS = 1000;
const LAST_RETRY_MS = 15000;

const url = new URL("events", import.meta.url);
const by = (id) => document.getElementById(id);

let retry = FIRST_RETRY_MS;

function say(text, kind) {
  const line = by("connection");
  if (line.textContent !== text) line.textContent = text;
  line.className = kind;
}

function take(status) {
  retry = FIRST_RETRY_MS;
  by("key-form").hidden = true;
  by("status").hidden = false;
  by("forget").hidden = sessionStorage.getItem(KEY) === null;
  draw(status);
  say("live", "live");
}

/** Ask for the key, and go on when it is there. */
function askForKey() {
  const wrong = sessionStorage.getItem(KEY) !== null;
  sessionStorage.removeItem(KEY);
  by("status").hidden = true;
  by("forget").hidden = true;
  by("key-form").hidden = false;
  say(wrong ? "the server does not know this key" : "an API key is needed", "lost");
  by("key").focus();
  return new Promise((resolve) => {
    by("key-form").addEventListener(
      "submit",
      (event) => {
        event.preventDefault();
        sessionStorage.setItem(KEY, by("key").value.trim());
        by("key").value = "";
        resolve();
      },
      { once: true },
    );
  });
}

/** One connection, until it ends or is silent for too long. */
async function listen() {
  const stop = new AbortController();
  let timer;
  const alive = () => {
    clearTimeout(timer);
    timer = setTimeout(() => stop.abort(), SILENCE_MS);
  };
  const forget = () => {
    sessionStorage.removeItem(KEY);
    stop.abort();
  };
  by("forget").addEventListener("click", forget);
  alive();
  try {
    await readEvents(url, sessionStorage.getItem(KEY), take, alive, stop.signal);
  } finally {
    clearTimeout(timer);
    by("forget").removeEventListener("click", forget);
  }
}

async function main() {
  for (;;) {
    try {
      await listen();
      say("the server has ended the connection; trying again …", "lost");
    } catch (error) {
      if (error instanceof NeedsKey) {
        await askForKey();
        continue;
      }
      say("no connection to the server; trying again …", "lost");
    }
    await new Promise((resolve) => setTimeout(resolve, retry));
    retry = Math.min(2 * retry, LAST_RETRY_MS);
  }
}

main();

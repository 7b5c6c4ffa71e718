// The event stream of the server. EventSource cannot send a token, so it is read with fetch.

const SILENCE = 15000; // milliseconds after which a silent server counts as gone
const PAUSES = [500, 1000, 2000, 4000]; // milliseconds before the next attempts to connect

export class Stream {
  constructor({ event, state, refused }) {
    this.handlers = { event, state, refused };
    this.token = sessionStorage.getItem("evenstep-token");
    this.attempt = 0;
    this.generation = 0;
  }

  open(query) {
    this.query = query;
    this.generation += 1;
    this.stop?.abort();
    clearTimeout(this.timer);
    this.run(this.generation);
  }

  useToken(token) {
    this.token = token;
    sessionStorage.setItem("evenstep-token", token);
    this.open(this.query);
  }

  async run(generation) {
    this.stop = new AbortController();
    try {
      await this.listen(generation);
    } catch {
      // Every error counts as a lost connection.
    }
    if (generation !== this.generation) return;
    const pause = PAUSES[Math.min(this.attempt, PAUSES.length - 1)];
    this.attempt += 1;
    this.handlers.state("gone");
    this.timer = setTimeout(() => this.run(generation), pause);
  }

  async listen(generation) {
    const stop = this.stop;
    const headers = this.token ? { Authorization: `Bearer ${asBytes(this.token)}` } : {};
    let watch = setTimeout(() => stop.abort(), SILENCE);
    try {
      const answer = await fetch(`/api/stream?${this.query}`, { headers, signal: stop.signal, cache: "no-store" });
      if (generation !== this.generation) return;
      if (answer.status === 401) {
        this.generation += 1;
        this.handlers.refused(this.token !== null);
        return;
      }
      if (!answer.ok) throw new Error(`the server answers ${answer.status}`);
      this.attempt = 0;
      this.handlers.state("open");
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      let text = "";
      for (;;) {
        const { value, done } = await reader.read();
        if (done || generation !== this.generation) return;
        clearTimeout(watch);
        watch = setTimeout(() => stop.abort(), SILENCE);
        text = this.take(text + value);
      }
    } finally {
      clearTimeout(watch);
    }
  }

  // Passes on the complete events, and returns the rest of the text.
  take(text) {
    const blocks = text.split("\n\n");
    const rest = blocks.pop();
    for (const block of blocks) {
      const fields = block.split("\n").map((line) => [line.slice(0, line.indexOf(":")), line.slice(line.indexOf(":") + 2)]);
      const { event, data } = Object.fromEntries(fields);
      if (event && data) this.handlers.event(event, JSON.parse(data));
    }
    return rest;
  }
}

// A header has bytes: the server reads them as UTF-8.
function asBytes(text) {
  return String.fromCharCode(...new TextEncoder().encode(text));
}

// The event stream of the server. EventSource cannot send a token, so it is read with fetch.

const SILENCE = 15000; // milliseconds after which a silent server counts as gone
const PAUSES = [500, 1000, 2000, 4000]; // milliseconds before it is tried again

export class Stream {
  constructor({ event, state, refused }) {
    this.tell = { event, state, refused };
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
      // Whatever went wrong, the server cannot be heard.
    }
    if (generation !== this.generation) return;
    const pause = PAUSES[Math.min(this.attempt, PAUSES.length - 1)];
    this.attempt += 1;
    this.tell.state("gone");
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
        this.tell.refused(this.token !== null);
        return;
      }
      if (!answer.ok) throw new Error(`the server answers ${answer.status}`);
      this.attempt = 0;
      this.tell.state("open");
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

  // Tells the events that are complete, and returns the rest.
  take(text) {
    const blocks = text.split("\n\n");
    const rest = blocks.pop();
    for (const block of blocks) {
      const fields = block.split("\n").map((line) => [line.slice(0, line.indexOf(":")), line.slice(line.indexOf(":") + 2)]);
      const { event, data } = Object.fromEntries(fields);
      if (event && data) this.tell.event(event, JSON.parse(data));
    }
    return rest;
  }
}

// A header takes bytes: letters go as UTF-8, as the server reads them.
function asBytes(text) {
  return String.fromCharCode(...new TextEncoder().encode(text));
}

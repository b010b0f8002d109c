// Assembles a streamed answer from its lines of JSON.

export const TYPE = 'application/x-ndjson';

/** Whether the text so far is a streamed answer. */
export const isStream = (request) => (request.getResponseHeader('Content-Type') ?? '').startsWith(TYPE);

/**
 * Parses the lines of an answer as they arrive.
 *
 * Attributes: `answer` as in the native API, with the pages so far and `pages_wanted`; `problem`, the members of
 * problem JSON if it ended early; `isWhole`, whether the last line has arrived.
 */
export class Stream {
  constructor() {
    this.answer = { pages: [] };
    this.problem = null;
    this.isWhole = false;
    this.seen = 0;
  }

  /** Parse the new lines of the text; return the number of new pages. */
  take(text) {
    const before = this.answer.pages.length;
    for (let end = text.indexOf('\n', this.seen); end >= 0; end = text.indexOf('\n', this.seen)) {
      const line = text.slice(this.seen, end);
      this.seen = end + 1;
      if (line.trim()) this.add(JSON.parse(line));
    }
    return this.answer.pages.length - before;
  }

  add({ end, pages_total, pages_wanted, ...members }) {
    this.isWhole ||= !('page' in members);
    if (end) {
      const { id, engine, timing } = end;
      Object.assign(this.answer, { id, engine, timing });
    } else if ('page' in members) {
      this.answer.pages.push(members);
      Object.assign(this.answer, { pages_total, pages_wanted });
    } else {
      this.problem = members.error;
    }
  }
}

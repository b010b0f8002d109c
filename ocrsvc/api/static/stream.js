// Puts an answer together whose pages come one by one, a line of JSON each.

export const TYPE = 'application/x-ndjson';

/** Whether what has come so far is such an answer. */
export const isStream = (request) => (request.getResponseHeader('Content-Type') ?? '').startsWith(TYPE);

/**
 * Takes the lines of an answer as they come.
 *
 * Attributes: `answer` as the native API has it, with the pages that are there, and with `pages_wanted`; `problem`, the
 * members of problem JSON if it ended early; `isWhole`, whether the last line has come.
 */
export class Stream {
  constructor() {
    this.answer = { pages: [] };
    this.problem = null;
    this.isWhole = false;
    this.seen = 0;
  }

  /** Take what is new in the text so far; how many pages came with it. */
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

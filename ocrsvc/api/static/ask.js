// Sends one file to the service, with retries.

import { isStream, Stream, TYPE } from './stream.js';

const TRIES = 10;
const LONGEST_WAIT_S = 60;

/** A failed request: the members of problem JSON, or the page's own texts. */
export class Problem extends Error {
  constructor(members, waitS = 0) {
    super(members.detail ?? '');
    this.members = members;
    this.waitS = waitS;
  }
}

/**
 * The service's answer for one file. A busy service is retried when it says so, unless the API key has no pages left
 * for today.
 *
 * @param file the body
 * @param options query parameters
 * @param signal aborts it with an AbortError
 * @param tell called with ('sending', share), ('reading', seconds of the upload) and ('busy', seconds)
 * @param take called with the partial answer when pages arrive; without it the answer is not streamed
 * @param as 'json', 'text' or 'blob'
 * @param path where the file is sent
 * @throws Problem
 */
export async function ask(file, options, signal, tell, { take, as = 'json', path = 'v1/ocr' } = {}) {
  for (let attempt = 1; ; attempt += 1) {
    try {
      return await send(file, options, signal, tell, { take, as, path });
    } catch (error) {
      if (!error.waitS || error.hasPages || attempt === TRIES) throw error;
      tell('busy', Math.ceil(error.waitS));
      // Random, so that refused clients do not all retry together.
      await pause(error.waitS * (1 + Math.random() / 4), signal);
    }
  }
}

function send(file, options, signal, tell, { take, as, path }) {
  return new Promise((resolve, reject) => {
    // fetch has no upload progress.
    const request = new XMLHttpRequest();
    const stop = () => request.abort();
    const url = new URL(path, document.baseURI);
    const stream = new Stream();
    const began = performance.now();
    url.search = new URLSearchParams(options);
    request.open('POST', url);
    if (as === 'blob') request.responseType = as;
    if (take) request.setRequestHeader('Accept', `${TYPE}, application/json;q=0.5`);
    // The same pages may be asked for in another format.
    request.setRequestHeader('X-Keep-Result', '1');
    request.setRequestHeader('Content-Type', file.type.startsWith('image/') ? file.type : 'application/octet-stream');
    request.upload.onprogress = (event) => tell('sending', event.loaded / (event.total || 1));
    request.upload.onload = () => tell('reading', (performance.now() - began) / 1000);
    request.onprogress = () => {
      if (take && isStream(request) && stream.take(request.responseText)) take(stream.answer);
    };
    request.onload = () => settle(request, as, stream, resolve, reject);
    request.onerror = () => reject(new Problem({ code: 'offline' }));
    request.onabort = () => reject(new DOMException('cancelled', 'AbortError'));
    request.onloadend = () => signal.removeEventListener('abort', stop);
    signal.throwIfAborted();
    signal.addEventListener('abort', stop);
    request.send(file);
  });
}

async function settle(request, as, stream, resolve, reject) {
  const isGood = request.status === 200 || request.status === 202;
  if (isGood && as !== 'json') return resolve(request.response);
  if (isGood && isStream(request)) return settleStream(request, stream, resolve, reject);
  const body = parse(as === 'blob' ? await request.response.text() : request.responseText);
  // An answer of the service has pages, or the links of a job.
  if (isGood && (Array.isArray(body?.pages) || body?.links)) return resolve(body);
  return reject(problemOf(request.status, (name) => request.getResponseHeader(name), body));
}

function settleStream(request, stream, resolve, reject) {
  stream.take(request.responseText);
  if (stream.isWhole && !stream.problem) return resolve(stream.answer);
  const problem = stream.problem ? new Problem(stream.problem) : new Problem({ code: 'offline' });
  problem.hasPages = stream.answer.pages.length > 0;
  return reject(problem);
}

/** The problem in an answer; `header` returns a header by name. */
export function problemOf(status, header, body) {
  const id = body?.id ?? header('X-Request-Id');
  const members = body?.title ? body : { code: 'strange', status };
  const waitS = status === 429 || status === 503 ? waitOf(header('Retry-After')) : 0;
  // Do not wait for tomorrow's quota.
  const isOver = members.code === 'quota_exceeded' && waitS > LONGEST_WAIT_S;
  return new Problem({ ...members, id }, isOver ? 0 : Math.min(waitS, LONGEST_WAIT_S));
}

export function parse(text) {
  try { return JSON.parse(text); } catch { return null; }
}

/** Retry-After in seconds, from a number or a date. */
function waitOf(header) {
  const seconds = /^\d+$/.test(header ?? '') ? Number(header) : (Date.parse(header) - Date.now()) / 1000;
  return Math.max(Number.isNaN(seconds) ? 1 : seconds, 0.5);
}

/** Wait, until the signal aborts it. */
export function pause(seconds, signal) {
  return new Promise((resolve, reject) => {
    const stop = () => { clearTimeout(timer); reject(new DOMException('cancelled', 'AbortError')); };
    const timer = setTimeout(() => { signal.removeEventListener('abort', stop); resolve(); }, seconds * 1000);
    signal.addEventListener('abort', stop, { once: true });
  });
}

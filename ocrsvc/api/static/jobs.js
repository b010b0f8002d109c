// Reads documents with too many pages for one request as jobs. A job goes on when the page is closed; the page's
// address names it.

import { ask, parse, pause, Problem, problemOf } from './ask.js';

const PATH = 'v1/jobs';
const POLL_S = 1;
const OFFLINE_S = 3;
const PAGES_AT_ONCE = 100;

/** Whether a request failed only because it would take too long. */
export const isTooLong = ({ members }) => ['too_many_pages', 'deadline_exceeded'].includes(members?.code);

/** Submit a document; return the job's id. The searchable PDF is created together with the last page. */
export async function submit({ file, name, options }, signal, tell) {
  const format = options.mask ? {} : { format: 'pdf' };
  return (await ask(file, { ...options, ...format, name }, signal, tell, { path: PATH })).id;
}

/** The state of a job. Throws Problem. */
export const statusOf = (id, signal) => get(id, signal);

/**
 * Wait for all pages of a job; return its answer, as of the native API.
 *
 * @param take called with the answer so far when pages arrive
 * @throws Problem of a failed or missing job
 */
export async function follow(id, signal, take) {
  const status = await patiently(() => get(id, signal), signal);
  const answer = { id, pages: [], pages_total: status.pages.in_document, pages_wanted: status.pages.total };
  for (;;) {
    const query = `/pages?after=${answer.pages.length}&limit=${PAGES_AT_ONCE}`;
    const { state, total, pages } = await patiently(() => get(id + query, signal), signal);
    answer.pages.push(...pages);
    if (pages.length) take(answer);
    if (answer.pages.length === total && state === 'done') return answer;
    if (state === 'failed' && !pages.length) throw new Problem({ title: '', ...(await get(id, signal)).error });
    if (!pages.length) await pause(POLL_S, signal);
  }
}

/** A file of a finished job as a Blob, or as text. */
export const resultOf = (id, format, as, signal) => get(`${id}/result?format=${format}`, signal, as);

/** The picture of a page of a job, as a Blob. */
export const pagePictureOf = (id, number, signal) => get(`${id}/picture?page=${number}`, signal, 'blob');

/** Delete a job, on the service too. */
export const remove = (id) => fetch(urlOf(id), { method: 'DELETE', keepalive: true }).catch(() => {});

/** The ids of the jobs in the page's address. */
export const idsInAddress = () => new URLSearchParams(location.hash.slice(1)).get('jobs')?.split(',') ?? [];

/** Put the ids of jobs into the page's address. */
export function putInAddress(ids) {
  const { pathname, search } = location;
  history.replaceState(null, '', ids.length ? `#jobs=${ids.join()}` : pathname + search);
}

const urlOf = (path) => new URL(`${PATH}/${path}`, document.baseURI);

async function get(path, signal, as = 'json') {
  let answer;
  try {
    answer = await fetch(urlOf(path), { signal });
    if (answer.ok) return await answer[as]();
  } catch (error) {
    throw error.name === 'AbortError' ? error : new Problem({ code: 'offline' });
  }
  throw problemOf(answer.status, (name) => answer.headers.get(name), parse(await answer.text()));
}

/** Repeat a request while the service is busy, restarts or cannot be reached: the job itself goes on. */
async function patiently(request, signal) {
  for (;;) {
    try {
      return await request();
    } catch (error) {
      const waitS = error.members?.code === 'offline' ? OFFLINE_S : error.waitS;
      if (!waitS) throw error;
      await pause(waitS, signal);
    }
  }
}

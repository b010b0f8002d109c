// Fetches pictures of pages that the browser cannot show itself.

import { pagePictureOf } from './jobs.js';

const KEPT = 6;
// The file is sent again for each picture, so slow uploads get no pictures.
const SLOW_S = 3;
const REST_MS = 120;

const kept = new Map();

/** Whether the service must render the file's pages; a job's file is not here. */
export const isDocument = ({ file }) => !file || /pdf|tiff?$/i.test(`${file.type}`) || /\.(pdf|tiff?)$/i.test(file.name);

/**
 * The URL of a page's picture, rendered by the service.
 *
 * @param item the image or document
 * @param number page number from 1
 * @param signal aborts it with an AbortError
 * @throws Error without a picture
 */
export async function pictureOf(item, number, signal) {
  const key = `${item.id}/${number}`;
  if (!kept.has(key)) keep(key, await ask(item, number, signal));
  return kept.get(key);
}

async function ask({ file, job, sentS }, number, signal) {
  if (sentS > SLOW_S && !job) throw new Error('The file takes long to send.');
  // Pages that the user skips quickly are not fetched.
  await new Promise((resolve) => { setTimeout(resolve, REST_MS); });
  signal.throwIfAborted();
  if (job) return pagePictureOf(job, number, signal);
  const url = new URL('v1/ocr/picture', document.baseURI);
  url.searchParams.set('page', number);
  const headers = { 'Content-Type': 'application/octet-stream' };
  const answer = await fetch(url, { method: 'POST', body: file, headers, signal });
  if (!answer.ok) throw new Error(`The service answered ${answer.status}.`);
  return answer.blob();
}

/** Keep only the last few pictures. */
function keep(key, blob) {
  kept.set(key, URL.createObjectURL(blob));
  const [oldest] = kept.keys();
  if (kept.size > KEPT) drop(oldest);
}

function drop(key) {
  URL.revokeObjectURL(kept.get(key));
  kept.delete(key);
}

/** Release the pictures of an image. */
export function forget({ id }) {
  for (const key of [...kept.keys()]) if (key.startsWith(`${id}/`)) drop(key);
}

// Fetches pictures of pages that the browser cannot draw by itself.

const KEPT = 6;
// The file is sent again for each picture: whoever needed longer than this to send it is spared that.
const SLOW_S = 3;
const REST_MS = 120;

const kept = new Map();

/** Whether the pages of an image's file are drawn by the service. */
export const isDocument = ({ file }) => /pdf|tif/i.test(`${file.type} ${file.name}`);

/**
 * The address of a page's picture, which the service draws.
 *
 * @param item the image or document
 * @param number of the page in it, from 1
 * @param signal ends it, with an AbortError
 * @throws Error where there is no picture
 */
export async function pictureOf(item, number, signal) {
  const key = `${item.id}/${number}`;
  if (!kept.has(key)) keep(key, await ask(item, number, signal));
  return kept.get(key);
}

async function ask({ file, sentS }, number, signal) {
  if (sentS > SLOW_S) throw new Error('The file takes long to send.');
  // Pages that are only leafed through are not asked for.
  await new Promise((resolve) => { setTimeout(resolve, REST_MS); });
  const url = new URL('v1/ocr/picture', document.baseURI);
  url.searchParams.set('page', number);
  const headers = { 'Content-Type': 'application/octet-stream' };
  signal.throwIfAborted();
  const answer = await fetch(url, { method: 'POST', body: file, headers, signal });
  if (!answer.ok) throw new Error(`The service answered ${answer.status}.`);
  return answer.blob();
}

/** A few pictures are kept, however many pages were looked at. */
function keep(key, blob) {
  kept.set(key, URL.createObjectURL(blob));
  const [oldest] = kept.keys();
  if (kept.size > KEPT) drop(oldest);
}

function drop(key) {
  URL.revokeObjectURL(kept.get(key));
  kept.delete(key);
}

/** Let go of the pictures of an image. */
export function forget({ id }) {
  for (const key of [...kept.keys()]) if (key.startsWith(`${id}/`)) drop(key);
}
